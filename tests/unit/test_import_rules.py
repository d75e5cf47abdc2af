"""The import contracts of pyproject.toml, broken on purpose in a copy of the source: each breach must be reported.

A contract that names a module which was moved, or an exception that is too wide, passes `make check` and guards
nothing. Only a breach shows that it does.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "pyproject.toml"
LINT = Path(sys.executable).with_name("lint-imports")
CONTRACTS = [contract["name"] for contract in tomllib.loads(CONFIG.read_text())["tool"]["importlinter"]["contracts"]]

FORBIDDEN = [
    # server -> broker -> store, and nothing back
    ("store", "broker"),
    ("store", "server"),
    ("store", "client"),
    ("broker", "server"),
    ("broker", "client"),
    ("server", "client"),
    # both ends import `api`, which knows neither
    ("api", "broker"),
    ("api", "store"),
    ("api", "server"),
    ("api", "client"),
    ("api", "options"),
    # the client shares only `api`, `message` and `errors`; `client.embedded` alone is excepted
    ("client", "broker"),
    ("client", "store"),
    ("client", "server"),
    ("client", "options"),
    ("cli", "broker"),
    ("cli", "store"),
    ("cli", "store.memory"),
    ("spark", "broker"),
    ("spark", "broker.rules"),
    ("spark", "store"),
    ("spark", "server"),
    # records and errors import nothing of the rest
    ("message", "api"),
    ("errors", "api"),
]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of `src`, without compiled files."""
    copy = tmp_path_factory.mktemp("imports") / "src"
    shutil.copytree(ROOT / "src", copy, ignore=shutil.ignore_patterns("__pycache__"))
    return copy


@contextmanager
def breach(source: Path, importer: str, imported: str) -> Iterator[str]:
    """Add a forbidden import, to a package in a new module; yield the name of the module that has it."""
    place = source / "miniq" / importer
    if place.is_dir():
        path, name = place / "trespass.py", f"miniq.{importer}.trespass"
        before = None
    else:
        path, name = place.with_suffix(".py"), f"miniq.{importer}"
        assert path.exists(), f"there is no miniq.{importer}: the contract guards nothing"
        before = path.read_text()
    target = source / "miniq" / imported.replace(".", "/")
    assert target.is_dir() or target.with_suffix(".py").exists(), f"there is no miniq.{imported}"
    path.write_text(f"{before or ''}\nimport miniq.{imported}\n")
    try:
        yield name
    finally:
        if before is None:
            path.unlink()
        else:
            path.write_text(before)


def lint(source: Path) -> subprocess.CompletedProcess[str]:
    """Check the contracts against a copy, which hides the package that is installed."""
    env = os.environ | {"PYTHONPATH": str(source), "COLUMNS": "500"}
    return subprocess.run(
        [LINT, "--config", CONFIG, "--no-cache"], cwd=source, env=env, capture_output=True, text=True, timeout=120
    )


def test_the_source_as_it_is_keeps_all_contracts(source: Path) -> None:
    ended = lint(source)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert f"{len(CONTRACTS)} kept, 0 broken" in ended.stdout


@pytest.mark.parametrize(("importer", "imported"), FORBIDDEN, ids=[f"{one}-{other}" for one, other in FORBIDDEN])
def test_a_forbidden_import_is_reported_with_its_contract(source: Path, importer: str, imported: str) -> None:
    with breach(source, importer, imported) as name:
        ended = lint(source)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert [contract for contract in CONTRACTS if f"{contract} BROKEN" in ended.stdout], ended.stdout
    assert f"{name} -> miniq.{imported} " in ended.stdout
