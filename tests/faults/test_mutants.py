"""The suite is itself proven: MiniQ with one promise broken is caught, MiniQ as it is is not."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.conftest import ENGINES
from tests.faults import catalog, disk
from tests.faults.checker import Verdict
from tests.faults.rig import Clients, server

SECONDS = 4.0
PowerLoss = Callable[[str, str, Path, Sequence[str]], Verdict]
POWER_LOSSES: list[PowerLoss] = [catalog.lose_unsynced] if disk.lacks() else [catalog.lose_unsynced, catalog.cut_power]


def program(mutant: str | None) -> list[str]:
    return ["miniq"] if mutant is None else ["tests.faults.mutants", mutant, "miniq"]


def kills(store: str, folder: Path, mutant: str | None, rounds: int = 1) -> list[Verdict]:
    """Load with two kills of the server in each round."""
    verdicts = []
    for number in range(rounds):
        with server(store, program(mutant)) as served:
            clients = Clients(served.url, f"{mutant}{number}", SECONDS, folder)
            try:
                for _ in range(2):
                    time.sleep(random.uniform(0.8, 1.4))
                    served.stop()
                    served.start()
                verdicts.append(clients.verdict())
            finally:
                clients.kill()
    return verdicts


def broken(verdicts: list[Verdict]) -> set[str]:
    return {violation.invariant for verdict in verdicts for violation in verdict.violations}


@pytest.mark.parametrize(
    ("mutant", "invariants"),
    [
        ("any-receipt", {"I2", "I3"}),
        ("no-expiry", {"I1"}),
        ("early-expiry", {"I2"}),
        ("thawed-claims", {"I1", "I6"}),
    ],
)
def test_a_broken_promise_is_caught(mutant: str, invariants: set[str], tmp_path: Path) -> None:
    for _ in range(5):
        found = broken(kills(f"rocksdb:{tmp_path / mutant}", tmp_path, mutant))
        if found & invariants:
            return
    pytest.fail(f"{mutant} was not noticed")


def test_a_repeated_call_that_is_carried_out_again_is_caught(tmp_path: Path) -> None:
    for number in range(5):
        verdict = catalog.cut_connections("rocksdb", f"no-dedup-{number}", tmp_path / str(number), program("no-dedup"))
        if "I1" in broken([verdict]):
            return
    pytest.fail("it was not noticed")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("lose_power", POWER_LOSSES)
def test_a_dropped_fsync_is_caught(engine: str, lose_power: PowerLoss, tmp_path: Path) -> None:
    assert "I1" in broken([lose_power(engine, "no-fsync", tmp_path, program("no-fsync"))])


@pytest.mark.parametrize("engine", ENGINES)
def test_a_confirmation_before_the_write_is_caught(engine: str, tmp_path: Path) -> None:
    verdicts = []
    for number in range(5):
        verdicts.append(
            catalog.kill_at_write(engine, f"hasty-{number + 5}", tmp_path, ["tests.faults.mutants", "hasty"])
        )
        if "I1" in broken(verdicts):
            return
    pytest.fail("it was not noticed")


def test_with_its_promises_kept_nothing_is_found(tmp_path: Path) -> None:
    (verdict,) = kills(f"rocksdb:{tmp_path / 'whole'}", tmp_path, None)
    assert verdict.good, [str(violation) for violation in verdict.violations]
    assert verdict.sent > 100
    assert verdict.acked > 100
