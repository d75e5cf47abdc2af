"""The manual: it is built without a link that leads nowhere, and served by a broker under a strict policy."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, expect

import miniq
from miniq.cli.root import COMMANDS
from tests.acceptance.browser import Visit
from tests.serving import Served, serving

ROOT = Path(__file__).parents[2]
ENV = {name: value for name, value in os.environ.items() if not name.startswith("MINIQ_")}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MiniQ as pip installs it from a checkout whose manual was never built, with the extra `docs`: a
    folder to import from."""
    folder = tmp_path_factory.mktemp("installed")
    copy = folder / "checkout"
    left_out = shutil.ignore_patterns("__pycache__", "site", ".venv", ".git", "node_modules", "miniq-data", "dist")
    shutil.copytree(ROOT, copy, ignore=left_out)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    run = subprocess.run(
        [*pip, "--target", str(folder / "lib"), str(copy)], capture_output=True, text=True, timeout=300
    )
    assert run.returncode == 0, run.stderr
    shutil.rmtree(copy)
    return folder / "lib"


@pytest.fixture(scope="module")
def served(installed: Path) -> Iterator[Served]:
    """A broker of that installation, whose manual was opened for the first time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(installed))
        with serving("memory:") as broker:
            status, _, text = got(f"{broker.url}/manual/")
            assert (status, "is being built" in text) == (503, True)
            end = time.monotonic() + 240
            while status == 503 and time.monotonic() < end:
                time.sleep(0.5)
                status, _, text = got(f"{broker.url}/manual/")
            assert status == 200, text
            yield broker


def got(url: str) -> tuple[int, dict[str, str], str]:
    """Status, headers and text of what is at a URL."""
    try:
        with urllib.request.urlopen(url, timeout=60) as reply:  # noqa: S310
            return reply.status, dict(reply.headers), reply.read().decode(errors="replace")
    except urllib.error.HTTPError as error:
        with error:
            return error.code, dict(error.headers), error.read().decode()


class Sources(HTMLParser):
    """What a page makes a browser load, and where its links lead."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = dict(attributes)
        if tag == "a":
            self.links.append(values.get("href") or "")
        elif tag == "link" and values.get("rel") not in ("prev", "next", "canonical"):
            self.loaded.append(values.get("href") or "")
        elif "src" in values:
            self.loaded.append(values["src"] or "")


def test_no_link_and_no_anchor_leads_nowhere(installed: Path, tmp_path: Path) -> None:
    """MkDocs tells of those in texts; those of the theme and of the references are looked up here."""
    env = ENV | {"PYTHONPATH": str(installed)}
    command = [sys.executable, "-m", "miniq.manual", str(tmp_path / "site"), "--strict"]
    run = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=280)
    assert (run.returncode, run.stderr) == (0, "")
    pages = {page: page.read_text(encoding="utf-8") for page in (tmp_path / "site").rglob("*.html")}
    assert len(pages) > 80
    ids = {page: set(re.findall(r'\bid="([^"]+)"', text)) for page, text in pages.items()}
    nowhere = []
    for page, text in pages.items():
        if page.name == "404.html":
            continue
        parts = Sources(text)
        assert [url for url in parts.loaded if re.match(r"[a-z]*:?//", url)] == [], page
        for link in {*parts.links, *parts.loaded}:
            path, _, anchor = link.partition("#")
            if re.match(r"[a-z]+:", link) or path.startswith("{"):
                continue
            target = (page.parent / path.partition("?")[0]).resolve() if path not in ("", ".") else page
            target = target / "index.html" if target.is_dir() else target
            if not target.exists() or (anchor and target in ids and anchor not in ids[target]):
                nowhere.append((page.name, link))
    assert nowhere == []


def test_it_has_every_command_and_what_python_programs_call(served: Served) -> None:
    _, _, commands = got(f"{served.url}/manual/reference/commands.html")
    assert {name for name in COMMANDS if f'id="miniq-{name}"' not in commands} == set()
    _, _, python = got(f"{served.url}/manual/reference/python.html")
    assert "miniq.Queue.receive" in python
    assert "Lease up to" in python, "a docstring"
    _, _, errors = got(f"{served.url}/manual/reference/errors.html")
    assert "stale_receipt" in errors
    _, _, start = got(f"{served.url}/manual/")
    assert f"MiniQ {miniq.__version__}" in start


def test_only_files_of_the_site_are_served_and_scripts_by_their_hash(served: Served) -> None:
    status, headers, page = got(f"{served.url}/manual/protocol.html")
    assert status == 200
    policy = headers["content-security-policy"]
    assert "unsafe" not in policy
    assert policy.count("'sha256-") == len(set(re.findall(r"<script>(.*?)</script>", page, re.DOTALL)))
    for path in ("..%2fbuild.py", "%2e%2e/mkdocs.yml", "no-such.html", "howto", "..%2f..%2f__init__.py"):
        status, _, text = got(f"{served.url}/manual/{path}")
        assert (status, '"code":"no_route"' in text) == (404, True), path
    assert got(f"{served.url}/manual/files/ops/miniq.toml")[1]["content-type"] == "text/plain; charset=utf-8"


@pytest.mark.parametrize(("size", "scheme"), [("desk", "light"), ("phone", "dark")])
def test_it_is_read_and_searched_in_a_browser(served: Served, browser: Browser, size: str, scheme: str) -> None:
    visit = Visit(browser, served.url, size, color_scheme=scheme)
    page = visit.page
    foreign: list[str] = []
    page.on("request", lambda asked: None if asked.url.startswith((served.url, "data:")) else foreign.append(asked.url))
    page.goto(f"{served.url}/manual/howto/dead-letters.html")
    expect(page.locator("h1")).to_contain_text("Retries and dead letters")
    assert page.locator("body").get_attribute("data-md-color-scheme") == {"light": "default", "dark": "slate"}[scheme]
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    # The theme lets keys scroll a block of code once it comes into view.
    rules = {"rules": {"scrollable-region-focusable": {"enabled": False}}}
    bad = Axe().run(page, options=rules).response["violations"]
    assert [(one["id"], one["nodes"][0]["html"]) for one in bad if one["impact"] in ("serious", "critical")] == []
    if size == "phone":
        page.locator("label[for=__search].md-header__button").click()
    page.locator("input.md-search__input").press_sequentially("visibility timeout")  # it listens to keys
    found = page.locator(".md-search-result__link[href*='h=visibility']").first
    expect(found).to_be_attached()
    page.goto(found.evaluate("link => link.href"))
    expect(page.locator("article mark").first).to_be_attached()
    page.goto(f"{served.url}/manual/")
    expect(page.locator("img[src$='console.png']")).to_be_visible()
    assert (visit.bad, foreign) == ([], [])
    visit.close()
