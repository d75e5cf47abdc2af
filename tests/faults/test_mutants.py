"""The suite is itself proven: MiniQ with one promise broken is caught, MiniQ as it is is not."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from tests.faults.checker import Verdict
from tests.faults.disk import disk
from tests.faults.rig import Clients, server

SECONDS = 4.0


def program(mutant: str | None) -> list[str]:
    return ["miniq"] if mutant is None else ["tests.faults.mutants", mutant]


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


def power_cut(folder: Path, mutant: str | None) -> Verdict:
    """Load on a disk whose power is cut under it."""
    with disk(folder) as drive, server(f"rocksdb:{drive.mount}/data", program(mutant)) as served:
        clients = Clients(served.url, f"power{mutant}", SECONDS, folder)
        try:
            time.sleep(2)
            drive.cut_power()
            served.stop()
            drive.pull_out()
            drive.plug_in()
            served.start()
            return clients.verdict()
        finally:
            clients.kill()
            served.stop()


def broken(verdicts: list[Verdict]) -> set[str]:
    return {violation.invariant for verdict in verdicts for violation in verdict.violations}


@pytest.mark.parametrize(
    ("mutant", "invariants"),
    [
        ("any-receipt", {"I2", "I3"}),
        ("no-expiry", {"I1"}),
        ("early-expiry", {"I2"}),
        ("no-dedup", {"I1"}),
        ("thawed-claims", {"I1", "I6"}),
    ],
)
def test_a_broken_promise_is_caught(mutant: str, invariants: set[str], tmp_path: Path) -> None:
    for _ in range(5):
        found = broken(kills(f"rocksdb:{tmp_path / mutant}", tmp_path, mutant))
        if found & invariants:
            return
    pytest.fail(f"{mutant} was not noticed")


def test_a_dropped_fsync_is_caught(tmp_path: Path) -> None:
    assert "I1" in broken([power_cut(tmp_path, "no-fsync")])


def test_with_its_promises_kept_nothing_is_found(tmp_path: Path) -> None:
    (verdict,) = kills(f"rocksdb:{tmp_path / 'whole'}", tmp_path, None)
    assert verdict.good, [str(violation) for violation in verdict.violations]
    assert verdict.sent > 100
    assert verdict.acked > 100


def test_power_loss_costs_nothing_that_was_confirmed(tmp_path: Path) -> None:
    verdict = power_cut(tmp_path, None)
    assert verdict.good, [str(violation) for violation in verdict.violations]
    assert verdict.sent > 100
