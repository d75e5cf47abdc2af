"""The import contracts of pyproject.toml, broken on purpose in a copy of the source: each breach must be reported.

A contract that names a module which was moved, or an exception that is too wide, passes `make check` and guards
nothing. Only a breach shows that it does.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "pyproject.toml"
LINT = Path(sys.executable).with_name("lint-imports")
CONTRACTS = [contract["name"] for contract in tomllib.loads(CONFIG.read_text())["tool"]["importlinter"]["contracts"]]

LAYERS = "server -> broker -> store -> records"
API = "the api is what both ends share: it knows neither"
BROKER = "broker and store know no wire"
SERVER = "a server knows nothing of clients"
CLIENT = "only the embedded transport brings a broker into a client"
RECORDS = "records and errors import nothing of ours"
COMMANDS = "the command line is a client; only `serve` and what works without a broker go further"
OPTIONS = "options are read from flags, environment and file in one place, for the command line"
SPARK = "Spark sees a broker as any other client does"
CELERY = "Celery sees a broker as any other client does"
DRAMATIQ = "Dramatiq sees a broker as any other client does"
PARTS = "the parts of the server do not reach into each other"

FORBIDDEN = [
    # server -> broker -> store, and nothing back
    *[(LAYERS, "store", imported) for imported in ("broker", "server", "client")],
    *[(LAYERS, "broker", imported) for imported in ("server", "client")],
    *[(BROKER, importer, "api") for importer in ("broker", "store")],
    (SERVER, "server", "client"),
    (SERVER, "server", "worker"),
    *[
        (PARTS, importer, imported)
        for importer, imported in (("server.http", "server.zmq"), ("server.zmq", "server.http"))
    ],
    # both ends import `api`, which knows neither
    *[(API, "api", imported) for imported in ("broker", "store", "server", "client", "options")],
    # the client shares only `api`, `message` and `errors`; `client.embedded` alone is excepted
    *[(CLIENT, "client", imported) for imported in ("broker", "store", "server", "options", "config")],
    (CLIENT, "worker", "broker"),
    *[(COMMANDS, "cli", imported) for imported in ("broker", "store", "store.memory")],
    # frameworks are clients too
    *[
        (SPARK, "spark", imported)
        for imported in ("broker", "broker.rules", "store", "server", "api", "client.embedded")
    ],
    *[(CELERY, "celery", imported) for imported in ("broker", "store", "server", "api")],
    *[(DRAMATIQ, "dramatiq", imported) for imported in ("broker", "store", "server", "api")],
    # records and errors import nothing of the rest
    (RECORDS, "message", "api"),
    (RECORDS, "errors", "api"),
    # one place reads options
    *[(OPTIONS, importer, "config") for importer in ("api", "broker", "client", "server", "store", "worker")],
    *[(OPTIONS, importer, "cli") for importer in ("client", "server")],
]
"""The contract, and the import that breaks it."""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of `src`, without compiled files."""
    copy = tmp_path_factory.mktemp("imports") / "src"
    shutil.copytree(ROOT / "src", copy, ignore=shutil.ignore_patterns("__pycache__"))
    return copy


@pytest.fixture(scope="module")
def broken(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What is reported of each contract that is broken, where every forbidden import was added at once: to a package in
    a module of its own."""
    copy = tmp_path_factory.mktemp("breaches") / "src"
    shutil.copytree(source, copy)
    for _, importer, imported in FORBIDDEN:
        target = copy / "miniq" / imported.replace(".", "/")
        assert target.is_dir() or target.with_suffix(".py").exists(), f"there is no miniq.{imported}"
        with trespasser(copy, importer, imported).open("a") as file:
            file.write(f"\nimport miniq.{imported}\n")
    ended = lint(copy)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    _, *sections = re.split(r"^(.+)\n-{3,}\n", ended.stdout.partition("Broken contracts")[2], flags=re.MULTILINE)
    return dict(zip(sections[::2], sections[1::2], strict=True))


def trespasser(source: Path, importer: str, imported: str) -> Path:
    """The module that gets a forbidden import."""
    place = source / "miniq" / importer.replace(".", "/")
    if place.is_dir():
        return place / f"trespass_{imported.replace('.', '_')}.py"
    assert place.with_suffix(".py").exists(), f"there is no miniq.{importer}: the contract guards nothing"
    return place.with_suffix(".py")


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


def test_every_contract_is_broken_here() -> None:
    assert {contract for contract, _, _ in FORBIDDEN} == set(CONTRACTS)


@pytest.mark.parametrize(
    ("contract", "importer", "imported"), FORBIDDEN, ids=[f"{one}-{other}" for _, one, other in FORBIDDEN]
)
def test_a_forbidden_import_is_reported_by_its_contract(
    broken: dict[str, str], source: Path, contract: str, importer: str, imported: str
) -> None:
    module = trespasser(source, importer, imported).relative_to(source).with_suffix("").as_posix().replace("/", ".")
    assert f"{module} -> miniq.{imported} " in broken[contract]


def test_a_package_that_no_layer_names_is_reported(source: Path) -> None:
    stranger = source / "miniq" / "stranger"
    stranger.mkdir()
    try:
        (stranger / "__init__.py").touch()
        ended = lint(source)
    finally:
        shutil.rmtree(stranger)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert f"{LAYERS} BROKEN" in ended.stdout
    assert "miniq.stranger" in ended.stdout.partition("Broken contracts")[2]
