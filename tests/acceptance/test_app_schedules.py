"""Tasks that are sent by the clock: `app.schedule`, `@app.cron`, and the workers that register them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import miniq
from miniq.testing import drain
from tests.acceptance.forks import PATIENCE
from tests.acceptance.shell import Shell
from tests.server import clear
from tests.serving import Served

APP = """
import miniq

app = miniq.App()


@app.cron("0 3 * * *", queue="reports", timezone="Europe/Berlin", max_receives=5)
def nightly() -> None:
    pass


@app.task(queue="seen-by")
def tick(text: str) -> None:
    app.queue("seen").send(text)


@app.task(queue="other")
def unrelated() -> None:
    pass


app.schedule(tick.options(priority=3), name="often", every=0.3, args=["hello"])
app.schedule(unrelated, every=60)
"""


@pytest.fixture
def app() -> Iterator[miniq.App]:
    with miniq.App("memory:") as app:
        yield app


def test_a_cron_task_is_a_task_with_a_schedule(app: miniq.App) -> None:
    ran = []

    @app.cron("0 3 * * *", queue="reports", catch_up="all")
    def nightly(day: str = "today") -> None:
        ran.append(day)

    nightly("called")
    nightly.send("sent")
    drain(app)
    assert ran == ["called", "sent"]
    declared = app.schedules["nightly"]
    made = app.client.perform(declared.call)
    assert (made.queue, made.cron, made.timezone, made.catch_up) == ("reports", "0 3 * * *", "UTC", "all")
    app.client.run_schedule("nightly")
    drain(app)
    assert ran == ["called", "sent", "today"]


def test_a_task_may_have_several_schedules(app: miniq.App) -> None:
    @app.cron("0 3 * * *", name="early")
    @app.cron("0 9 * * *")
    @app.task(queue="reports")
    def report(region: str = "eu") -> None:
        pass

    app.schedule(report, name="us", every=60, kwargs={"region": "us"})
    assert sorted(app.schedules) == ["early", "report", "us"]
    draft = app.schedules["us"].call.definition.draft  # type: ignore[union-attr]
    assert (draft.body, draft.headers) == (b'{"region":"us"}', {"task": "report"})


def test_what_is_wrong_with_a_schedule_is_told_when_it_is_declared(app: miniq.App) -> None:
    @app.task
    def greet(name: str) -> None:
        pass

    cases: list[tuple[Any, dict[str, Any], str]] = [
        (print, {"cron": "0 3 * * *"}, "is not a task; declare it with @app.task"),
        (greet, {"args": ["a"]}, "needs exactly one of cron, every and at; none was given"),
        (greet, {"args": ["a"], "cron": "0 3 * * *", "every": 5}, "cron and every were given"),
        (greet, {"args": ["a"], "crom": "0 3 * * *"}, "no option 'crom'; use one of cron, every, at"),
        (greet, {"cron": "0 3 * * *"}, "name"),
        (greet, {"args": ["a"], "cron": "0 3 * *"}, "^greet: cron: '0 3 \\* \\*' has 4 fields"),
        (greet, {"args": ["a"], "cron": "0 25 * * *"}, "^greet: cron: '0 25 \\* \\* \\*' is invalid"),
        (greet, {"args": ["a"], "every": 0}, "^greet: every: 0 is not a number of seconds from 0.1"),
        (greet, {"args": ["a"], "at": datetime(2026, 1, 1)}, "^greet: at: .* is not a moment with an offset"),
        (greet, {"args": ["a"], "every": 5, "timezone": "Mars/Base"}, "^greet: timezone: 'Mars/Base' is not a"),
        (greet, {"args": ["a"], "every": 5, "catch_up": "none"}, "^greet: catch_up: 'none' is invalid"),
    ]
    for task, given, problem in cases:
        with pytest.raises((miniq.InvalidRequest, TypeError), match=problem):
            app.schedule(task, **given)
    for wrong in ("0 3 * *", "", "x"):
        with pytest.raises(miniq.InvalidRequest, match=r"^greet: cron: "):
            app.cron(wrong)(greet)
    app.schedule(greet, every=5, args=["a"])
    with pytest.raises(miniq.InvalidRequest, match="there is a schedule 'greet' already"):
        app.schedule(greet, every=6, args=["a"])


def test_a_worker_registers_the_schedules_of_its_queues_and_changes_nothing_the_next_time(
    server: Served, tmp_path: Path
) -> None:
    clear(server.url)
    (tmp_path / "shop.py").write_text(APP)
    shell = Shell(server.url, tmp_path)
    with miniq.connect(server.url) as mq:
        for round in range(2):
            worker = shell.start("worker", "shop:app", "--queues", "reports,seen-by")
            try:
                if round == 0:
                    [message] = mq.queue("seen").receive(wait=30)
                    assert message.body == "hello"
                    first = mq.pause_schedule("often")
                else:
                    assert worker.stderr is not None
                    while b"working on queues" not in (line := worker.stderr.readline()):
                        assert line
            finally:
                worker.terminate()
                worker.communicate(timeout=PATIENCE)
            assert worker.returncode == 0
        nightly, often = mq.schedules()
        assert replace(often, next=[]) == replace(first, next=[]), "it is still paused"
        assert (nightly.name, nightly.queue, nightly.timezone) == ("nightly", "reports", "Europe/Berlin")
        assert mq.queue("reports").info().settings.max_receives == 5
        for name in ("nightly", "often"):
            mq.delete_schedule(name)


def test_a_worker_starts_though_the_moment_of_a_schedule_has_passed(server: Served, tmp_path: Path) -> None:
    clear(server.url)
    moment = "__import__('datetime').datetime.fromisoformat('2020-01-01T00:00:00+00:00')"
    (tmp_path / "shop.py").write_text(f"{APP}\napp.schedule(unrelated, name='once', at={moment})\n")
    worker = Shell(server.url, tmp_path).start("worker", "shop:app")
    with miniq.connect(server.url) as mq:
        try:
            [message] = mq.queue("seen").receive(wait=30)
            assert message.body == "hello"
        finally:
            worker.terminate()
            _, said = worker.communicate(timeout=PATIENCE)
        assert worker.returncode == 0
        assert b"cannot set the schedule once: at: 2020-01-01T00:00:00+00:00 has passed" in said
        assert [schedule.name for schedule in mq.schedules()] == ["nightly", "often", "unrelated"]
        for schedule in mq.schedules():
            mq.delete_schedule(schedule.name)


def test_a_worker_with_a_wrong_schedule_does_not_start(tmp_path: Path, server: Served) -> None:
    (tmp_path / "shop.py").write_text(APP.replace("0 3 * * *", "0 3 * *"))
    ended = Shell(server.url, tmp_path)("worker", "shop:app", code=1)
    assert '@app.cron("0 3 * *"' in ended.err, "the line where it is written"
    assert "cron: '0 3 * *' has 4 fields" in ended.err
