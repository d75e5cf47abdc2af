"""`miniq produce` and `consume` as processes, and `bench`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.shell import Shell, collect, on_folder, serving
from tests.kit import wait_for


@pytest.fixture(scope="module")
def miniq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    with serving(tmp_path_factory.mktemp("broker")) as shell:
        yield shell


def events(lines: list[str]) -> tuple[list[dict[str, object]], dict[str, object]]:
    """What `--json` said of each message, and the totals."""
    found = [json.loads(line) for line in lines]
    return found[:-1], found[-1]


def test_any_number_of_producers_and_consumers_share_the_work(miniq: Shell) -> None:
    sent, totals = events(miniq("produce", "many", "--workers", "3", "--count", "100", "--json").lines)
    assert totals["sent"] == 100
    assert {one["worker"] for one in sent} == {"producer-1", "producer-2", "producer-3"}
    command = ["consume", "many", "--workers", "3", "--idle", "1", "--work", "5ms", "--json"]
    done, totals = events(miniq(*command).lines)
    assert (totals["acked"], totals["failed"], totals["lost"]) == (100, 0, 0)
    assert Counter(one["id"] for one in done) == Counter(one["id"] for one in sent)
    assert len({one["worker"] for one in done}) == 3


def test_what_fails_comes_again_until_it_is_done(miniq: Shell) -> None:
    miniq("queues", "create", "failing", "--retry-delay", "0")
    miniq("produce", "failing", "--count", "50", "--batch", "20", "--quiet")
    done, totals = events(
        miniq("consume", "failing", "--fail-rate", "0.5", "--batch", "10", "--count", "50", "--json").lines
    )
    assert totals["acked"] == 50
    assert totals["failed"] == sum(one["event"] == "failed" for one in done) > 0
    assert max(one["receives"] for one in done) > 1  # type: ignore[type-var]


def test_they_print_what_they_did_and_the_totals(miniq: Shell) -> None:
    out = miniq("produce", "shown", "--count", "3", "--size", "200").lines
    assert [line.split()[1] for line in out[:3]] == ["sent", "sent", "sent"]
    assert out[3].startswith("sent 3 messages in ")
    (first, *_) = miniq("peek", "shown", "--json").objects
    assert len(json.dumps(first["body"], separators=(",", ":"))) == 200
    out = miniq("consume", "shown", "--count", "3").lines
    assert [line.split()[1] for line in out[:3]] == ["acked", "acked", "acked"]
    assert out[3].startswith("acked 3 messages in ")
    assert miniq("consume", "shown", "--idle", "0.1", "--quiet").out == "acked 0 messages in 0.0 s, 0 per second\n"


def test_rate_is_not_exceeded(miniq: Shell) -> None:
    began = time.monotonic()
    miniq("produce", "paced", "--count", "21", "--rate", "20", "--quiet")
    assert time.monotonic() - began >= 1


@pytest.mark.parametrize("workers", ["1", "2"])
def test_ctrl_c_ends_them_cleanly_with_their_totals(miniq: Shell, workers: str) -> None:
    queue = f"interrupted-{workers}"
    miniq("queues", "create", queue)
    running = [
        miniq.start("produce", queue, "--rate", "50", "--workers", workers),
        miniq.start("consume", queue, "--work", "50ms", "--batch", "20", "--workers", workers),
    ]
    for process in running:
        assert process.stdout is not None
        process.stdout.readline()
    time.sleep(2)
    for process in running:
        process.send_signal(signal.SIGINT)
    produced, consumed = (collect(process) for process in running)
    assert (produced.code, produced.err) == (0, "")
    assert (consumed.code, consumed.err) == (0, "")
    assert produced.lines[-1].startswith("sent ")
    assert int(produced.lines[-1].split()[1]) == len(produced.lines), "the first line was read before"
    assert int(consumed.lines[-1].split()[1]) == len(consumed.lines)
    counts = miniq("queues", "show", queue, "--json").objects[0]["counts"]
    assert counts["leased"] == 0, "what was received and not begun is given back"
    assert counts["total"] == len(produced.lines) - len(consumed.lines)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_while_workers_start_ends_them_cleanly(miniq: Shell, number: int) -> None:
    miniq("send", "elsewhere", "1")
    process = miniq.start("consume", "elsewhere", "--workers", "2", "--work", "1h")
    wait_for(lambda: len(children_of(process.pid)) >= 2)
    process.send_signal(number)
    ended = collect(process)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith("acked 0 messages")


def test_workers_end_with_the_one_who_started_them(miniq: Shell) -> None:
    miniq("queues", "create", "orphans")
    process = miniq.start("consume", "orphans", "--workers", "2")
    wait_for(lambda: len(children_of(process.pid)) >= 2)
    children = children_of(process.pid)
    process.kill()
    process.wait()
    wait_for(lambda: not any(os.path.exists(f"/proc/{child}") for child in children))
    collect(process)


def test_workers_on_a_folder_get_a_broker(tmp_path: Path) -> None:
    miniq = on_folder(tmp_path)
    miniq("produce", "q", "--workers", "2", "--count", "10", "--quiet")
    assert miniq("consume", "q", "--workers", "2", "--count", "10", "--quiet").out.startswith("acked 10 messages")


def test_bench_measures_and_leaves_nothing(miniq: Shell) -> None:
    found = miniq("bench", "--seconds", "0.1", "--json").objects
    wanted = [(operation, batch) for batch in (1, 100, 1000) for operation in ("send", "receive+ack")]
    assert [(one["operation"], one["batch"]) for one in found] == wanted
    assert all(one["rate"] > 0 and 0 < one["p50_ms"] <= one["p99_ms"] for one in found)
    head = miniq("bench", "--seconds", "0.05").lines[0]
    assert head.split() == ["OPERATION", "BATCH", "MESSAGES/S", "P50", "MS", "P99", "MS"]
    assert not [one for one in miniq("queues", "--json").objects if one["name"].startswith("bench-")]


def children_of(pid: int) -> list[int]:
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True)
    return [int(line) for line in found.stdout.split()]
