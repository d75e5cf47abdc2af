"""What Celery's users have reported for ten years, on MiniQ and, where Redis is installed, on Redis.

- kombu#337, celery#2599, #3270, #2481: a task whose `eta` is beyond the visibility timeout runs more than once
- celery#5935: a long task is delivered again while it runs
- celery#4400: the same task runs several times at once

On MiniQ each runs once. The half of Redis shows that the tests would see the fault; it needs `redis-server`, and is
left out where there is none.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.celery_kit import call, environment, notes, until, working
from tests.faults.ahead import ahead
from tests.serving import Served, free_ports

VISIBILITY = 2
LONG = 3 * VISIBILITY
HAS_REDIS = shutil.which("redis-server") is not None and find_spec("redis") is not None
BROKERS = ["miniq", "redis"] if HAS_REDIS else ["miniq"]
OPTIONS: dict[str, dict[str, Any]] = {
    "miniq": {"lease": VISIBILITY},
    "redis": {"visibility_timeout": VISIBILITY, "unacked_restore_interval": 1, "unacked_restore_throttle": 1},
}


@contextlib.contextmanager
def redis(folder: Path) -> Iterator[str]:
    [port] = free_ports(1)
    flags = ["--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", ""]
    process = subprocess.Popen(["redis-server", *flags], stdout=subprocess.DEVNULL)
    try:
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        process.terminate()
        process.wait(30)


class Report:
    """What ran on a broker when two workers had a task that is due later and a long one."""

    def __init__(self, env: dict[str, str]) -> None:
        self.due = len(notes(env, "added"))
        self.spans = [
            (began["at"], next((end["at"] for end in notes(env, "ended") if end["pid"] == began["pid"]), time.time()))
            for began in notes(env, "began")
        ]

    @property
    def at_once(self) -> int:
        """How often the long task ran at the same time at most."""
        return max(sum(start <= moment < end for start, end in self.spans) for moment, _ in self.spans)


def reported(broker: str, server: Served, folder: Path) -> Report:
    """What two workers on a broker do with both tasks."""
    with contextlib.ExitStack() as stack:
        url = f"miniq://127.0.0.1:{server.port}"
        if broker == "redis":
            url = stack.enter_context(redis(folder))
        env = environment(url, folder / "notes", OPTIONS[broker], task_default_queue="reports")
        for name in ("first", "second"):
            stack.enter_context(working(env, "-c", "4", name=name))
        call(env, f"late.delay(1, {LONG}); add.apply_async((1, 1), countdown={LONG})")
        until(lambda: notes(env, "ended") and notes(env, "added"))
        if broker == "redis":
            until(lambda: len(notes(env, "began")) > 1 and len(notes(env, "added")) > 1)
        else:  # what could be delivered again would be by now
            time.sleep(VISIBILITY + 1)
        return Report(env)


@pytest.fixture(scope="module")
def reports(
    request: pytest.FixtureRequest, server: Served, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Report]]:
    folders = {broker: tmp_path_factory.mktemp(broker) for broker in BROKERS}
    yield from ahead(request, "broker", lambda broker: reported(broker, server, folders[broker]))


@pytest.fixture
def report(broker: str, reports: Callable[[str], Report]) -> tuple[str, Report]:
    return broker, reports(broker)


@pytest.mark.parametrize("broker", BROKERS)
def test_a_task_with_an_eta_beyond_the_visibility_timeout_runs_once(report: tuple[str, Report]) -> None:
    broker, seen = report
    assert seen.due == 1 if broker == "miniq" else seen.due > 1


@pytest.mark.parametrize("broker", BROKERS)
def test_a_long_task_is_not_delivered_again_while_it_runs(report: tuple[str, Report]) -> None:
    broker, seen = report
    assert len(seen.spans) == 1 if broker == "miniq" else len(seen.spans) > 1


@pytest.mark.parametrize("broker", BROKERS)
def test_a_task_does_not_run_several_times_at_once(report: tuple[str, Report]) -> None:
    broker, seen = report
    assert seen.at_once == 1 if broker == "miniq" else seen.at_once > 1
