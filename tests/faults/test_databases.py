"""A database that is killed, paused or cut off: no promise is broken, and the broker comes back by itself."""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import store_url
from tests.faults.databases import DatabaseServer, pause_database, running, url_of
from tests.serving import Served, serving

PATIENCE = 2
"""Seconds after which a send gives up a database that is away."""
RECOVERY = 30.0
"""Seconds from the database's return after which a broker that still refuses calls has not noticed it."""


@pytest.fixture(scope="module", params=["postgresql", "mongodb"])
def database(request: pytest.FixtureRequest) -> Iterator[DatabaseServer]:
    """A server of our own: others need the session's."""
    store_url(request.param, Path())  # skips or fails where there can be none
    with running(request.param) as server:
        yield server


@pytest.fixture
def url(database: DatabaseServer, request: pytest.FixtureRequest) -> str:
    """A store of our own in it."""
    return url_of(database, f"faults{abs(hash(request.node.name)) % 10**9}")


@pytest.fixture
def served(url: str, tmp_path: Path) -> Iterator[Served]:
    config = tmp_path / "miniq.toml"
    config.write_text(f"database_timeout = {PATIENCE}\n")
    with serving(url, 0, "--config", str(config)) as served:
        yield served


def test_a_pause_of_the_database_breaks_no_promise(database: DatabaseServer, url: str, tmp_path: Path) -> None:
    """In test_drill.py it is killed, and its connections are cut, under three brokers and the same clients."""
    verdict = pause_database(database, url, "short-7", tmp_path)
    assert verdict.good, [str(violation) for violation in verdict.violations]
    assert verdict.sent > 20
    assert verdict.acked > 20


def ask(served: Served, path: str, body: Any = None, **headers: str) -> tuple[int, dict[str, str], Any]:
    """One call over HTTP without any retries: status, headers, answer."""
    request = urllib.request.Request(  # noqa: S310
        served.url + path,
        None if body is None else json.dumps(body).encode(),
        {"content-type": "application/json"} | {name.replace("_", "-"): value for name, value in headers.items()},
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
            return answer.status, dict(answer.headers), json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, dict(error.headers), json.load(error)


SEND = "/v1/queues/q/messages"


def test_while_the_database_is_away_calls_are_told_so_and_then_they_work_again(
    database: DatabaseServer, served: Served
) -> None:
    assert ask(served, SEND, {"body": 1})[0] == 201
    _, _, got = ask(served, "/v1/queues/q/receive", {"max": 1})
    leases = [{"id": one["id"], "receipt": one["receipt"]} for one in got["messages"]]
    database.kill()
    calls: list[tuple[str, Any]] = [
        (SEND, {"body": 2}),
        ("/v1/queues/q/receive", {"max": 1}),
        ("/v1/queues/q/ack", {"leases": leases}),
        ("/v1/queues/q", None),
    ]
    for path, body in calls:
        status, headers, problem = ask(served, path, body)
        assert (status, problem["code"], headers["retry-after"]) == (503, "store_unavailable", "1"), path
        assert "Traceback" not in json.dumps(problem)
    status, _, health = ask(served, "/ready")
    assert (status, health["status"]) == (503, "unavailable")
    assert ask(served, "/health")[0] == 200
    database.start()
    database.wait()
    back = time.monotonic()
    while ask(served, SEND, {"body": 3})[0] != 201:
        assert time.monotonic() < back + RECOVERY
    assert ask(served, "/v1/queues/q/ack", {"leases": leases})[2]["results"][0]["outcome"] == "acked"
    _, _, got = ask(served, "/v1/queues/q/receive", {"max": 10})
    assert [one["body"] for one in got["messages"]][-1] == 3


def test_a_send_that_was_not_answered_is_repeated_and_added_once(database: DatabaseServer, served: Served) -> None:
    """With its idempotency key. Whether the first try came through depends on the moment, so there are several."""
    ask(served, SEND, {"body": "first"})
    for number in range(5):
        killer = threading.Timer(0.001 * number, database.kill)
        killer.start()
        while ask(served, SEND, {"body": number}, idempotency_key=f"call-{number}")[0] != 201:
            start_again(database, killer)
        start_again(database, killer)
        while ask(served, SEND, {"body": number}, idempotency_key=f"call-{number}")[0] != 201:
            pass
    _, _, got = ask(served, "/v1/queues/q/receive", {"max": 100})
    assert [one["body"] for one in got["messages"]] == ["first", *range(5)]


def start_again(database: DatabaseServer, killer: threading.Timer) -> None:
    """Once it was killed."""
    killer.join()
    if database.process.poll() is not None:
        database.start()
        database.wait()
