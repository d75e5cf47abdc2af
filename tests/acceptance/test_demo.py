"""`make demo`, as it is: a crash, failing workers, dead letters, Spark, and every promise kept."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from miniq.demo.crew import Note
from miniq.demo.promises import delivery
from tests.acceptance.shell import environment

PROMISES = 11


def test_the_demo_keeps_every_promise(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "miniq.demo"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment(),
        timeout=280,
    )
    assert (ended.returncode, ended.stderr) == (0, ""), ended.stdout + ended.stderr
    assert "killed with -9" in ended.stdout
    assert ended.stdout.count("\nkept ") == PROMISES
    assert "BROKEN" not in ended.stdout
    report = ended.stdout.splitlines()[-1].removeprefix("report: ")
    assert Path(report) == tmp_path / "miniq-demo" / "report.html"
    assert ">Throughput<" in Path(report).read_text(encoding="utf-8")
    assert [path.name for path in tmp_path.iterdir()] == ["miniq-demo"]


def test_leases_of_one_millisecond_are_told_apart_by_their_counts() -> None:
    """A message that fails at once is received again before the moment of its lease has changed on the wire."""
    received = [Note("received", "a", 2, 10.0), Note("received", "a", 1, 10.0)]
    promises = delivery([], [*received, Note("failing", "a", 1, at=8.0), Note("acked", "a", 2, at=8.1)], 0)
    assert [promise.kept for promise in promises if "receive count" in promise.text] == [True]
    later = delivery([], [Note("received", "a", 2, 10.0), Note("received", "a", 1, 11.0)], 0)
    assert [promise.kept for promise in later if "receive count" in promise.text] == [False]


def test_a_dead_letter_that_is_sent_back_begins_anew() -> None:
    """Also if the reply to its last receive was lost with the broker, so that no worker knows of it."""
    received = [Note("received", "a", 1, 10.0), Note("received", "a", 2, 11.0), Note("received", "a", 1, 30.0)]
    for dead, kept in (({"a"}, True), (set(), False)):
        promises = delivery([], received, 0, dead)
        assert [promise.kept for promise in promises if "receive count" in promise.text] == [kept]
