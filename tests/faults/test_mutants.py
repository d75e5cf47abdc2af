"""The suite is itself proven: MiniQ with one promise broken is caught, MiniQ as it is is not."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from msgspec import Struct

from tests.conftest import ENGINES
from tests.faults import catalog, disk
from tests.faults.ahead import ahead
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


class Mutant(Struct, frozen=True):
    """MiniQ with a promise broken, what brings it to light, and as what."""

    name: str
    provoke: Callable[[int, Path], list[Verdict]]
    """Called with the number of the try and a folder."""
    noticed_as: set[str]
    tries: int = 5

    def caught(self, folder: Path) -> bool:
        for number in range(self.tries):
            place = folder / str(number)
            place.mkdir()
            if broken(self.provoke(number, place)) & self.noticed_as:
                return True
        return False


def killed(mutant: str, invariants: set[str]) -> Mutant:
    return Mutant(mutant, lambda _, folder: kills(f"rocksdb:{folder / 'data'}", folder, mutant), invariants)


def without_power(engine: str, lose_power: PowerLoss) -> Mutant:
    return Mutant(
        f"no-fsync-{lose_power.__name__}-{engine}",
        lambda _, folder: [lose_power(engine, "no-fsync", folder, program("no-fsync"))],
        {"I1"},
        tries=1,
    )


def killed_at_write(engine: str) -> Mutant:
    def provoke(number: int, folder: Path) -> list[Verdict]:
        return [catalog.kill_at_write(engine, f"hasty-{number + 5}", folder, ["tests.faults.mutants", "hasty"])]

    return Mutant(f"hasty-{engine}", provoke, {"I1"})


def cut_off(number: int, folder: Path) -> list[Verdict]:
    return [catalog.cut_connections("rocksdb", f"no-dedup-{number}", folder, program("no-dedup"))]


MUTANTS = [
    killed("any-receipt", {"I2"}),
    killed("no-expiry", {"I1"}),
    killed("early-expiry", {"I2"}),
    killed("thawed-claims", {"I6"}),
    Mutant("no-dedup", cut_off, {"I1"}),
    *(without_power(engine, lose_power) for engine in ENGINES for lose_power in POWER_LOSSES),
    *(killed_at_write(engine) for engine in ENGINES),
]


@pytest.fixture(scope="module")
def caught(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[Mutant], bool]]:
    yield from ahead(request, "mutant", lambda mutant: mutant.caught(tmp_path_factory.mktemp(mutant.name)))


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_broken_promise_is_caught(mutant: Mutant, caught: Callable[[Mutant], bool]) -> None:
    assert caught(mutant), f"{mutant.name} was not noticed"


def test_with_its_promises_kept_nothing_is_found(tmp_path: Path) -> None:
    (verdict,) = kills(f"rocksdb:{tmp_path / 'whole'}", tmp_path, None)
    assert verdict.good, [str(violation) for violation in verdict.violations]
    assert verdict.sent > 100
    assert verdict.acked > 100
