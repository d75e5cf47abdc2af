"""Celery's beat on native schedules: a real server, real beats in processes of their own."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, uuid5

import pytest
from celery import Celery
from celery.exceptions import ImproperlyConfigured
from celery.schedules import crontab, schedule

import miniq
from miniq.celery import Scheduler
from miniq.celery.timings import Timing, next_moment, timing_of
from tests.serving import Served, serving

PATIENCE = 120
ROOT = Path(__file__).parents[2]
QUEUE = "celery.beat.beats"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(f"rocksdb:{tmp_path_factory.mktemp('beat') / 'data'}", 0, "--no-zmq") as server:
        yield server


@contextmanager
def beating(served: Served, folder: Path, entries: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A beat, as a process of its own."""
    environment = os.environ | {
        "MINIQ_TEST_FOLDER": str(folder),
        "MINIQ_TEST_BEAT": served.url.replace("http://", "miniq://"),
        "MINIQ_TEST_ENTRIES": json.dumps(entries),
    }
    command = [sys.executable, "-m", "celery", "-A", "tests.acceptance.celery_beats", "beat"]
    with (folder.parent / "beats.log").open("ab") as log:
        process = subprocess.Popen(
            [*command, "-S", "miniq.celery:Scheduler", "--pidfile="], cwd=ROOT, env=environment, stdout=log, stderr=log
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            process.wait(60)


def until(holds: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def sent(folder: Path) -> list[tuple[str, str, list[Any]]]:
    """The tasks that were sent: name, id and arguments."""
    tasks = []
    for file in folder.glob("*.msg"):
        try:
            message = json.loads(file.read_text())
        except ValueError:  # it is being written
            continue
        arguments = json.loads(base64.b64decode(message["body"]))[0]
        tasks.append((message["headers"]["task"], message["headers"]["id"], arguments))
    return tasks


def test_three_beats_send_each_moment_once_also_when_one_is_killed(served: Served, tmp_path: Path) -> None:
    folder = tmp_path / "queue"
    folder.mkdir()
    entries = {"a b": "quick", "late": "slow", "own": "computed", "night": "every night"}

    def count(task: str) -> int:
        return sum(name == task for name, _, _ in sent(folder))

    with miniq.connect(served.url) as mq, ExitStack() as stack:
        beats = [stack.enter_context(beating(served, folder, entries)) for _ in range(3)]
        until(lambda: count("do.a b") >= 6 and count("do.own") >= 3, "the beats send nothing")
        beats[0].kill()
        now = count("do.a b"), count("do.own")
        until(lambda: count("do.a b") >= now[0] + 6 and count("do.own") >= now[1] + 3, "the others do not go on")
        schedules = {schedule.name: schedule for schedule in mq.schedules()}
        (name,) = (name for name in schedules if name.startswith(f"{QUEUE}.a-b-"))
        assert set(schedules) == {name, f"{QUEUE}.late", f"{QUEUE}.own", f"{QUEUE}.night"}
        assert (schedules[f"{QUEUE}.night"].cron, schedules[f"{QUEUE}.night"].timezone) == (
            "0 3 * * *",
            "Europe/Berlin",
        )
        assert schedules[f"{QUEUE}.late"].every == 5 * 3600
        mq.pause_schedule(name)
        moments = [firing.moment for firing in mq.get_schedule(name).results if firing.outcome == "sent"]
        ids = {str(uuid5(NAMESPACE_URL, f"{name}:{text(moment)}")) for moment in moments}
        assert len(ids) >= 10
        until(lambda: ids <= {id for _, id, _ in sent(folder)}, "a moment is missing")
        each = Counter(id for _, id, _ in sent(folder))
        assert set(each.values()) == {1}
        assert {tuple(arguments) for task, _, arguments in sent(folder) if task == "do.a b"} == {("a b",)}
        assert count("do.late") == count("do.night") == 0
        for beat in beats[1:]:
            beat.send_signal(signal.SIGTERM)
            assert beat.wait(60) == 0
        mq.resume_schedule(name)

        # Other entries in the configuration: what is gone there is gone here.
        with beating(served, folder, {"a b": "slow", "night": "every night"}):
            until(
                lambda: {one.name: one.every for one in mq.schedules()} == {name: 5 * 3600, f"{QUEUE}.night": None},
                "the schedules stay as they were",
            )


def text(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")


def app_of(served: Served, **entries: Any) -> Celery:
    app = Celery("here", broker="memory://", set_as_current=False)
    app.conf.update(
        beat_miniq_url=served.url.replace("http://", "miniq://"), beat_schedule=entries, result_expires=None
    )
    return app


def test_a_beat_that_was_away_sends_one_task_per_entry(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    app = app_of(served, it={"task": "do", "schedule": 3600})
    scheduler = Scheduler(app)
    fired: list[Any] = []
    monkeypatch.setattr(scheduler, "apply_async", lambda entry, **_: fired.append(entry.options["task_id"]))
    with miniq.connect(served.url) as mq:
        queue = mq.queue("celery.beat.here")
        for number in range(5):
            queue.send({"entry": "it"}, headers={"miniq-moment": f"2026-01-01T0{number}:00:00Z"})
        queue.send({"entry": "unknown"})
        monkeypatch.setattr("miniq.celery.scheduler.STALE", timedelta(seconds=-10))
        assert scheduler.tick() == 0
        assert fired == [str(uuid5(NAMESPACE_URL, "celery.beat.here.it:2026-01-01T04:00:00Z"))]
        counts = queue.info().counts
        assert (counts.ready + counts.delayed, counts.leased) == (1, 0)  # another beat may know what is unknown here
        # A task that cannot be sent is tried again.
        queue.purge()
        monkeypatch.setattr(scheduler, "apply_async", lambda entry, **_: 1 / 0)
        queue.send({"entry": "it"})
        scheduler.tick()
        assert "ZeroDivisionError" in (queue.peek()[0].error or "")
    scheduler.close()
    app.close()


def test_the_last_run_is_known_after_a_restart(served: Served) -> None:
    app = app_of(served, it={"task": "do", "schedule": 3600})
    with miniq.connect(served.url) as mq:
        scheduler = Scheduler(app)
        scheduler._publish()
        moment = mq.run_schedule("celery.beat.here.it").results[0].moment
        scheduler.close()
        again = Scheduler(app)
        again._publish()
        assert again.schedule["it"].last_run_at == moment
        again.close()
        mq.delete_schedule("celery.beat.here.it")
    app.close()


def test_an_unreachable_broker_is_tried_again() -> None:
    app = Celery("away", broker="memory://", set_as_current=False)
    app.conf.update(beat_miniq_url="miniq://127.0.0.1:1?retry=0", beat_schedule={"it": {"task": "t", "schedule": 1}})
    scheduler = Scheduler(app)
    assert scheduler.tick() > 0
    scheduler.close()
    app.close()


def test_wrong_settings_are_told(served: Served) -> None:
    app = Celery("wrong", broker="memory://", set_as_current=False)
    with pytest.raises(ImproperlyConfigured, match=r"^beat_miniq_url: not set"):
        Scheduler(app)
    app.conf.beat_miniq_url = "redis://host"
    with pytest.raises(ImproperlyConfigured, match=r"^beat_miniq_url: the scheme 'redis'"):
        Scheduler(app)
    app.close()
    app = app_of(served, it={"task": "do", "schedule": 0.01})
    scheduler = Scheduler(app)
    with pytest.raises(ImproperlyConfigured, match=r"^beat_schedule\['it'\]: every: "):
        scheduler.tick()
    scheduler.close()
    app.close()


def test_schedules_have_the_same_timing_in_miniq() -> None:
    app = Celery("zone", set_as_current=False)
    app.conf.timezone = "Asia/Tokyo"

    def cron(**fields: Any) -> str | None:
        timing = timing_of(crontab(app=app, **fields))
        assert timing is None or timing.timezone == "Asia/Tokyo"
        return None if timing is None else timing.cron

    assert timing_of(schedule(90)) == Timing(every=90.0)
    assert timing_of(schedule(timedelta(days=1), relative=True)) is None
    assert cron() == "* * * * *"
    assert cron(minute="*/7", hour="8-10,20") == "*/7 8,9,10,20 * * *"
    assert cron(minute=5, hour=[1, 2], month_of_year="2-4") == "5 1,2 * 2,3,4 *"
    assert cron(minute=0, hour=0, day_of_week="mon-fri") == "0 0 * * 1,2,3,4,5"
    assert cron(minute=0, hour=0, day_of_month="1") == "0 0 1 * *"
    assert cron(minute=0, hour=0, day_of_month="13", day_of_week="fri") is None  # either, in cron
    app.conf.timezone = "localtime"
    app.__dict__.pop("timezone", None)
    assert timing_of(crontab(app=app)) is None, "the broker's time zone may be another one"


def test_moments_that_only_celery_can_compute_follow_each_other() -> None:
    app = Celery("zone", set_as_current=False)
    both = crontab(minute=0, hour=0, day_of_month="13", day_of_week="fri", app=app)
    after = datetime.now(UTC)
    for _ in range(3):
        moment = next_moment(both, after)
        assert moment > after
        assert (moment.day, moment.weekday(), moment.hour, moment.microsecond) == (13, 4, 0, 0)
        after = moment
    moment = next_moment(schedule(1, relative=True, app=app), after)
    assert moment == after + timedelta(seconds=1)
