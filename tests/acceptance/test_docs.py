"""Every example of the README, the protocol and the how-tos is run, in order, against a real broker, and every
link between pages leads somewhere."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.acceptance.warm_spark import warm_spark
from tests.conftest import ENGINES, store_url
from tests.serving import serving

ROOT = Path(__file__).parents[2]
PAGES = [
    "README.md",
    "docs/protocol.md",
    "docs/tutorial.md",
    *sorted(str(page.relative_to(ROOT)) for page in ROOT.glob("docs/howto/*.md")),
]
DATABASES = {"docs/howto/mongodb.md": "mongodb", "docs/howto/postgresql.md": "postgresql"}
"""Pages whose broker works on a database."""
WRITTEN = {
    "mongodb": "mongodb://127.0.0.1:27017/miniq",
    "postgresql": "postgresql://miniq@127.0.0.1:5432/miniq",
}
"""How those pages name the database."""
BLOCK = re.compile(r"^```(bash|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.timeout(900)  # the pages on Spark take a busy machine minutes
@pytest.mark.parametrize("page", PAGES)
def test_the_examples_of_a_page_work(page: str, tmp_path: Path) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    database = DATABASES.get(page, "rocksdb")
    store = store_url(database, tmp_path / "data")
    with contextlib.ExitStack() as stack:
        served = stack.enter_context(serving(store))
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        environ = os.environ | {"PATH": path, "MINIQ_URL": served.url, "XDG_STATE_HOME": str(tmp_path / "state")}
        blocks = BLOCK.findall(text)
        if any("miniq pipeline " in code for _, code in blocks):
            environ = stack.enter_context(warm_spark(tmp_path / "bin", environ))
        for kind, code in blocks:
            code = code.replace("http://127.0.0.1:5000", served.url).replace("tcp://127.0.0.1:5557", served.tcp)
            code = code.replace("miniq://127.0.0.1:5000", f"miniq://127.0.0.1:{served.port}")
            code = code.replace(WRITTEN.get(database, store), store)
            if "leveldb" not in ENGINES:
                code = code.replace("leveldb:", "rocksdb:")
            command = ["bash", "-euo", "pipefail", "-c"] if kind == "bash" else [sys.executable, "-W", "error", "-c"]
            run = subprocess.run(
                [*command, code], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=300
            )
            assert (run.returncode, run.stderr) == (0, ""), code
            if kind == "bash":
                refused = re.findall(r'"code":"(\w+)"', run.stdout)
                assert refused == re.findall(r'^#.*"code":"(\w+)"', code, re.MULTILINE), (code, run.stdout)


def test_every_route_has_an_example() -> None:
    from miniq.server.operations import OPERATIONS

    text = (ROOT / "docs/protocol.md").read_text(encoding="utf-8")
    examples = "\n".join(code for kind, code in BLOCK.findall(text) if kind == "bash")
    for operation in OPERATIONS:
        pattern = re.sub(r"\\{\w+\\}", r"[^/'\" ]+", re.escape(operation.path))
        assert re.search(pattern + r"(?=[?'\"\s]|$)", examples, re.MULTILINE), operation.path


@pytest.mark.parametrize("page", ["README.md", *sorted(str(p.relative_to(ROOT)) for p in ROOT.glob("docs/**/*.md"))])
def test_links_between_pages_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text)
    files = [link for link in links if not re.match(r"[a-z]+:", link)]
    assert [link for link in files if not ((ROOT / page).parent / link).exists()] == []


def anchors(page: Path) -> set[str]:
    """The names of a page's headings, as repositories make them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    names: list[str] = []
    for heading in re.findall(r"^#+ +(.+?) *$", text, re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w -]", "", plain.lower()).replace(" ", "-")
        names.append(f"{name}-{names.count(name)}" if name in names else name)
    return set(names)


@pytest.mark.parametrize("page", ["README.md", *sorted(str(p.relative_to(ROOT)) for p in ROOT.glob("docs/**/*.md"))])
def test_links_to_a_heading_name_one(page: str) -> None:
    here = ROOT / page
    links = re.findall(r"\]\(([^)#\s]*)#([^)\s]+)\)", here.read_text(encoding="utf-8"))
    pages = [((here.parent / path) if path else here, anchor) for path, anchor in links if ":" not in path]
    assert [anchor for path, anchor in pages if path.suffix == ".md" and anchor not in anchors(path)] == []


def test_the_text_of_the_readme_is_wrapped() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if len(line) > 130 and not line.startswith("|")] == []


def test_every_decision_is_listed_and_opens_with_its_status() -> None:
    folder = ROOT / "docs/decisions"
    listed = (folder / "README.md").read_text(encoding="utf-8")
    for page in folder.glob("0*.md"):
        title, status, *_ = page.read_text(encoding="utf-8").split("\n\n")
        assert status.startswith(tuple(f"**Status:** {word}" for word in ("accepted", "superseded", "proposed"))), (
            page.name
        )
        assert f"({page.name}) | {title.partition('. ')[2]} |" in listed, page.name


def test_nobody_is_told_to_install_the_other_project_of_this_name() -> None:
    """`miniq` on PyPI is not this one."""
    texts = [path for folder in ("src", "docs", "ops", "tests") for path in (ROOT / folder).rglob("*.*")]
    named = re.compile(r"pip install '?miniq\b")
    wrong = [
        path.name
        for path in (ROOT / "README.md", *texts)
        if path.suffix in (".py", ".md", ".toml", ".js", ".service") and path.name != "test_docs.py"
        if named.search(path.read_text())
    ]
    assert wrong == []
