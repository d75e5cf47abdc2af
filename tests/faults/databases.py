"""Faults of a database under a broker, one function each, for any server that can be killed, paused and started again.

The clients go on meanwhile. The broker is never restarted: it must come back by itself.
"""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from tests import mongod, postgresql
from tests.acceptance.client_wires import Cut, Proxy
from tests.faults.catalog import SECONDS, Fault
from tests.faults.checker import Verdict
from tests.faults.rig import Clients, server


class DatabaseServer(Protocol):
    """A database's server as a process."""

    port: int
    process: subprocess.Popen[bytes]

    def start(self) -> None: ...

    def wait(self) -> None:
        """Until it takes writes."""

    def kill(self) -> None: ...

    def pause(self) -> None: ...

    def go_on(self) -> None: ...


def kill_database(database: DatabaseServer, url: str, seed: str, folder: Path) -> Verdict:
    """kill -9 of the database at a random moment, twice, and a start a moment later."""
    chance = random.Random(seed)
    with server(url) as served:
        clients = Clients(served.url, seed, SECONDS, folder)
        try:
            for _ in range(2):
                time.sleep(chance.uniform(0.5, 1.2))
                database.kill()
                time.sleep(chance.uniform(0, 0.5))
                database.start()
                database.wait()
            verdict = clients.verdict()
            assert served.running
            return verdict
        finally:
            clients.kill()


def pause_database(database: DatabaseServer, url: str, seed: str, folder: Path) -> Verdict:
    """The database stands still for longer than most leases, as before a failover, and goes on."""
    with server(url) as served:
        clients = Clients(served.url, seed, SECONDS, folder)
        try:
            time.sleep(1)
            database.pause()
            time.sleep(1.5)
            database.go_on()
            return clients.verdict()
        finally:
            database.go_on()
            clients.kill()


def cut_database(database: DatabaseServer, url: str, seed: str, folder: Path) -> Verdict:
    """Every connection to the database is cut after some bytes, in the middle of calls, another number each time."""
    chance = random.Random(seed)
    with (
        Proxy(f"db://127.0.0.1:{database.port}") as proxy,
        server(url.replace(f":{database.port}", f":{proxy.port}")) as served,
    ):
        clients = Clients(served.url, seed, SECONDS, folder)
        try:
            ends = time.monotonic() + SECONDS * 2 / 3  # then a slow machine gets something through too
            while time.monotonic() < ends:
                most = chance.randrange(5000)
                proxy.cuts = [Cut(request=most) if chance.random() < 0.5 else Cut(answer=most)]
                time.sleep(chance.uniform(0, 0.2))
                if chance.random() < 0.3:
                    proxy.drop_all()
            proxy.cuts = []
            return clients.verdict()
        finally:
            clients.kill()


@contextmanager
def running(kind: str) -> Iterator[DatabaseServer]:
    """A database of a kind in a process of its own."""
    if kind == "postgresql":
        with postgresql.running() as server:
            yield server
    else:
        other = mongod.Mongod()
        try:
            yield other
        finally:
            other.remove()


def url_of(database: DatabaseServer, name: str) -> str:
    """The URL of a store in it; the driver stays on the address that it is given."""
    if isinstance(database, postgresql.Server):
        return database.url()
    assert isinstance(database, mongod.Mongod)
    return f"{database.url}/{name}?directConnection=true&serverSelectionTimeoutMS=500"


def _alone(
    inject: Callable[[DatabaseServer, str, str, Path], Verdict],
) -> Callable[[str, str, Path], Verdict]:
    """The same as a fault of the catalog, with a database for each round."""

    def fault(kind: str, seed: str, folder: Path) -> Verdict:
        with running(kind) as database:
            return inject(database, url_of(database, "faults"), seed, folder)

    return fault


FAULTS = [
    Fault(name, kind, _alone(inject))
    for name, inject in (
        ("kill -9 of the database", kill_database),
        ("database paused: late acks", pause_database),
        ("connections to the database cut at any byte", cut_database),
    )
    for kind in ("postgresql", "mongodb")
]
