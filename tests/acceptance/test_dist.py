"""What is released: the wheel in an environment of its own with base dependencies only, and the source distribution."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

import miniq
from tests.acceptance.browser import Visit, browsing
from tests.serving import Served, serving

ROOT = Path(__file__).parents[2]
BASE_LIMIT = 60_000_000
"""Bytes that an installation with base dependencies may take, without pip."""
LOADED = "import sys, miniq; print(*{name.partition('.')[0] for name in sys.modules} - {'sitecustomize', '__main__'})"
"""Prints the top-level modules that `import miniq` loads."""
EXPENSIVE = {"asyncio", "ssl", "http", "multiprocessing", "concurrent", "subprocess", "sqlite3", "unittest", "xml"}
"""Modules of Python that take long to load, and that a client does not need before it connects."""
LEFT_OUT = shutil.ignore_patterns(
    "__pycache__", ".venv", ".git", "node_modules", "miniq-*", "dist", ".*_cache", ".hypothesis"
)


def ran(*command: str | Path, cwd: Path, **env: str) -> str:
    """What a command printed, which must succeed. It gets nothing of ours from the environment."""
    clean = {
        name: value for name, value in os.environ.items() if not name.startswith(("MINIQ_", "PYTHON", "VIRTUAL_ENV"))
    }
    done = subprocess.run(command, cwd=cwd, env=clean | env, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `make dist` builds, in a copy of the checkout."""
    copy = tmp_path_factory.mktemp("dist") / "checkout"
    shutil.copytree(ROOT, copy, ignore=LEFT_OUT)
    ran(sys.executable, "-m", "miniq.manual", copy / "src/miniq/manual/site", cwd=copy)
    ran(sys.executable, "-m", "hatchling", "build", "-d", "dist", cwd=copy)
    return copy / "dist"


@pytest.fixture(scope="module")
def clean(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment outside the checkout, with the wheel and its base dependencies."""
    folder = tmp_path_factory.mktemp("clean")
    ran(sys.executable, "-m", "venv", "--without-pip", folder / "venv", cwd=folder)
    python = folder / "venv/bin/python"
    (wheel,) = dist.glob("*.whl")
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--disable-pip-version-check"]
    ran(*pip, "-c", ROOT / "constraints.txt", wheel, cwd=folder)
    return python


@pytest.fixture(scope="module")
def served(clean: Path) -> Iterator[Served]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", str(clean))
        patch.delenv("PYTHONPATH", raising=False)
        with serving("memory:") as broker:
            yield broker


def test_the_wheel_has_what_programs_need_and_nothing_else(dist: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {name.partition("/")[0] for name in names} == {
        "miniq", "miniq_command.py", "pyspark_miniq", "pytest_miniq.py", f"miniq-{miniq.__version__}.dist-info",
    }  # fmt: skip
    for name in ("miniq/py.typed", "miniq/console/index.html", "miniq/manual/site/index.html"):
        assert name in names
    assert [name for name in names if name.startswith("miniq/manual/source/")] == [], "the site instead of its sources"
    print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB, {len(names)} files")


def test_the_source_distribution_has_the_sources_of_everything(dist: Path) -> None:
    (source,) = dist.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for name in ("src/miniq/py.typed", "docs/README.md", "tests/conftest.py", "Makefile", "LICENSE", "hatch_build.py"):
        assert name in names
    assert [name for name in names if "manual/site" in name or name.startswith((".venv", "dist"))] == []


def test_a_base_installation_is_small_and_typed(clean: Path) -> None:
    packages = next((clean.parents[1] / "lib").glob("python*/site-packages"))
    sizes = {
        path.name: sum(file.stat().st_size for file in path.rglob("*") if file.is_file() and file.suffix != ".pyc")
        for path in packages.iterdir()
        if path.is_dir()
    }
    print({name: f"{size / 1e6:.1f} MB" for name, size in sorted(sizes.items(), key=lambda one: -one[1])[:8]})
    assert sum(sizes.values()) < BASE_LIMIT
    assert (packages / "miniq/py.typed").is_file()
    loaded = ran(clean, "-c", LOADED, cwd=clean.parents[1]).split()
    others = {name for name in loaded if name not in sys.stdlib_module_names}
    others.discard("typing_extensions")  # msgspec uses it if it is there
    assert others == {"miniq", "msgspec"}
    assert EXPENSIVE.isdisjoint(loaded), "importing miniq stays quick"
    assert ran(clean, "-P", "-c", "import miniq; print(miniq.__version__)", cwd=ROOT).strip() == miniq.__version__


def test_what_is_installed_has_a_command_a_console_api_docs_and_a_manual(clean: Path, served: Served) -> None:
    command = clean.parent / "miniq"
    assert ran(command, "--version", cwd=clean.parents[1]).strip().endswith(miniq.__version__)
    assert re.fullmatch(
        r"[0-9a-f-]{36}\n", ran(command, "send", "q", "hello", "--url", served.url, cwd=clean.parents[1])
    )
    assert "hello" in ran(command, "receive", "q", "--ack", "--url", served.url, cwd=clean.parents[1])
    with browsing() as browser:
        visit = Visit(browser, served.url, "desk")
        expect(visit.go("/").locator("#live")).to_have_text("live")
        visit.page.goto(f"{served.url}/docs")
        expect(visit.page.locator("details").first).to_be_visible()
        visit.page.goto(f"{served.url}/manual")
        expect(visit.page.locator("h1").first).to_contain_text("MiniQ")
        assert visit.bad == []
        visit.close()
