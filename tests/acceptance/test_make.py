"""What `make` installs, and when: real `make`, with a pip that only writes down what it is asked for."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from importlib.metadata import distributions
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parents[2]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with our Makefile, and an environment whose programs log their calls."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
        os.utime(tmp_path / name, (1, 1))
    bin = tmp_path / ".venv" / "bin"
    bin.mkdir(parents=True)
    for name in ("pip", "python", "miniq", "ruff", "mypy", "lint-imports"):
        (bin / name).write_text(f'#!/bin/sh\necho {name} "$@" >> log\n')
        (bin / name).chmod(0o755)
    return tmp_path


def made(project: Path, *targets: str) -> list[str]:
    """What `make` calls for these targets, without the flags that every install has."""
    log = project / "log"
    log.unlink(missing_ok=True)
    subprocess.run(["make", *targets], cwd=project, check=True, capture_output=True, timeout=60)
    return [line.partition("constraints.txt ")[2] or line for line in log.read_text().splitlines()]


def test_serve_installs_the_base_package_alone_and_once(project: Path) -> None:
    assert made(project, "serve") == ["-e .", "miniq serve"]
    assert made(project, "serve") == ["miniq serve"]


def test_other_targets_install_on_top_and_serve_goes_on_with_that(project: Path) -> None:
    tools = ["--upgrade pip", "-e .[all] --group dev"]
    assert made(project, "serve") == ["-e .", "miniq serve"]
    assert made(project, "fmt") == [*tools, "ruff format .", "ruff check --fix ."]
    assert made(project, "serve") == ["miniq serve"]
    assert made(project, "fmt") == ["ruff format .", "ruff check --fix ."]


def test_a_changed_list_of_dependencies_is_installed_by_the_next_target(project: Path) -> None:
    made(project, "fmt")
    later = (project / ".venv" / ".ready").stat().st_mtime + 1
    os.utime(project / "pyproject.toml", (later, later))
    assert made(project, "serve") == ["-e .", "miniq serve"]
    os.utime(project / ".venv" / ".base", (later + 1, later + 1))
    assert made(project, "fmt")[:2] == ["--upgrade pip", "-e .[all] --group dev"]


def test_help_lists_every_target_that_a_person_calls() -> None:
    listed = subprocess.run(
        ["make", "--no-print-directory", "help"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    names = [line.split()[0] for line in listed.splitlines()]
    assert {"serve", "test", "check", "fmt", "demo", "bench"} <= set(names)
    (start,) = {line.index(line.split(maxsplit=1)[1]) for line in listed.splitlines()}
    assert start > max(map(len, names)), "the texts are one column"


def test_an_old_python_is_named_before_anything_is_installed(project: Path) -> None:
    old = project / "old-python"
    old.write_text('#!/bin/sh\nexec python3 -c "import sys; sys.version_info = (3, 9); exec(sys.argv[1])" "$2"\n')
    old.chmod(0o755)
    ended = subprocess.run(
        ["make", "PYTHON=./old-python", "serve"], cwd=project, capture_output=True, text=True, timeout=60
    )
    assert ended.returncode != 0
    assert "MiniQ needs Python 3.11 or later" in ended.stderr
    assert not (project / "log").exists()


def test_every_pinned_version_can_be_installed_on_the_python_of_debian_12() -> None:
    """3.11.2: a version that asks for a later patch release would end `make test` there."""
    pinned = dict(re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    assert len(pinned) > 100
    wanting = {}
    for found in distributions():
        name, needs = found.metadata["Name"].lower().replace("_", "-"), found.metadata["Requires-Python"]
        if name in pinned and needs and "3.11.2" not in SpecifierSet(needs):
            wanting[name] = needs
    assert wanting == {}
