"""The short form of `make faults-databases`, and that a drill notices what is wrong and what is slow."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from tests.conftest import store_url
from tests.faults import watch
from tests.faults.ahead import ahead
from tests.faults.drill import STORES, drill
from tests.faults.drill_stage import Drill, Result, Shape, Stage
from tests.faults.shapes import SHAPES, consumed, mixed_load, plain
from tests.faults.watch import SlowLog, Span, Statement, Watch

SCALE = 0.001


@pytest.fixture(scope="module")
def results(request: pytest.FixtureRequest) -> Iterator[Callable[[str], list[Result]]]:
    def run(kind: str) -> list[Result]:
        return asyncio.run(drill(kind, SHAPES, SCALE))

    yield from ahead(request, "kind", run)


@pytest.mark.parametrize("kind", STORES)
def test_faults_and_shapes_break_no_promise_of_three_brokers_on_a_database(
    kind: str, results: Callable[[str], list[Result]], tmp_path: Path
) -> None:
    store_url(kind, tmp_path)  # skips or fails where there can be none
    found = results(kind)
    assert [result.name for result in found] == [shape.name for shape in SHAPES]
    wrong = {result.name: result.wrong for result in found if result.wrong}
    assert not wrong
    assert all(result.calls and result.slowest[1] for result in found)


async def test_acks_that_are_only_said_are_noticed() -> None:
    async def mixed(stage: Stage, seconds: int) -> None:
        async with mixed_load(stage, stage.crew()):
            await asyncio.sleep(seconds)

    async def alike(stage: Stage, count: int) -> None:
        crew = stage.crew()
        await crew.fill(count, plain)
        await consumed(stage, crew, (10,))

    shapes = [Shape("alike", alike, 1000), Shape("mixed load", mixed, 1, "s", least=1)]
    counted, loaded = await drill("postgresql", shapes, 1, ["tests.faults.mutants", "said-acks", "miniq"])
    assert any(wrong.startswith("I3: ") for wrong in loaded.wrong), loaded.wrong
    assert any(wrong.startswith("counts after all were acked: ") for wrong in counted.wrong), counted.wrong


async def test_a_statement_and_a_call_that_wait_are_noticed_and_named(tmp_path: Path) -> None:
    async def locked(stage: Stage, count: int) -> None:
        """Nobody can change a message for a while."""
        crew = stage.crew()
        await crew.fill(count, plain)
        stage.watch.expect()
        consuming = asyncio.create_task(crew.consume())
        with psycopg.connect(uri) as other:
            other.execute(f"LOCK TABLE {schema}.messages IN EXCLUSIVE MODE".encode())
            await asyncio.sleep(1)
        await crew.drained(count)
        stage.watch.rest()
        crew.working = False
        await consuming

    async with Drill("postgresql", tmp_path).running() as stage:
        uri, _, schema = stage.url.partition("?schema=")
        result = await stage.run(Shape("locked", locked, 500), 1)
    assert not result.wrong
    assert result.slowest[0] > 0.9
    assert result.gap > 0.9
    assert "take_own" in {statement.name for statement in result.statements}
    (late,) = result.late()
    assert late.startswith("slow statements: ")


def test_a_slow_call_and_a_gap_are_late() -> None:
    result = Result("a", "mongodb", 1, "messages", 1, (3.5, "ack"), 5.5, [Statement("find blocks", 0.3)], [], 1)
    assert result.late() == ["a call (ack) took 3.5 s", "nothing was delivered for 5.5 s"]
    assert "| 3.50 s (ack) | 5.50 s | 1 of `find blocks` (≤ 0.30 s) | 0 |" in str(result)


def test_time_in_which_the_database_was_down_is_nobodys_fault() -> None:
    observed = Watch()
    now = time.monotonic()
    observed.called("ack", now - 8)
    observed.called("send", now - 2)
    observed.down.append(Span(now - 7, now - 3))
    assert observed.slowest()[1] == "send"
    assert 1.9 < observed.slowest()[0] < 3
    observed._expected.append(Span(now - 9, now))
    observed._deliveries += [now - 7.5, now - 1]
    assert observed.gap() == pytest.approx(2)


def test_slow_statements_are_read_from_the_logs_of_both_databases() -> None:
    text = """LOG:  duration: 431.250 ms  execute _pg3_4: /* miniq:move */
	WITH shelf AS (
LOG:  duration: 250.000 ms  statement: COMMIT
LOG:  checkpoint starting: time
"""
    assert list(watch.of_postgresql(text)) == [Statement("move", 0.43125), Statement("COMMIT", 0.25)]
    text = """{"msg":"Slow query","attr":{"ns":"drill.blocks","command":{"find":"blocks"},"durationMillis":300}}
{"msg":"Slow query","attr":{"ns":"drill.blocks","command":{"find":"blocks"},"durationMillis":150}}
{"msg":"Slow query","attr":{"type":"update","ns":"drill.x","command":{"q":{"_id":1}},"durationMillis":200}}
{"msg":"Connection accepted","attr":{}}
"""
    assert list(watch.of_mongodb(text)) == [Statement("find blocks", 0.3), Statement("update x", 0.2)]
    assert watch.summary([Statement("a", 0.3), Statement("a", 0.5)]) == "2 of `a` (≤ 0.50 s)"


def test_only_statements_from_a_moment_on_count(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("LOG:  duration: 300.000 ms  statement: COMMIT\n")
    slow = SlowLog(log, watch.of_postgresql)
    assert slow.statements() == []
    with log.open("a") as file:
        file.write("LOG:  duration: 400.000 ms  statement: BEGIN\n")
    assert slow.statements() == [Statement("BEGIN", 0.4)]
