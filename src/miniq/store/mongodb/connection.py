"""The connection to MongoDB: transactions, retried where that is safe, and translation of the driver's errors.

A server that does not answer within `patience` seconds is unreachable. A transaction that conflicts with another is
retried. If its outcome is unknown because the server or the caller is gone, it is aborted at the server in the
background, so that its locks are not held until the server's timeout of a minute. The transaction of a broker that was
killed is aborted by the broker that meets it: see `Link.abort_abandoned`.
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
import time
import warnings
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import pymongo
from bson.errors import BSONError
from pymongo import AsyncMongoClient, ReadPreference
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.asynchronous.database import AsyncDatabase
from pymongo.errors import (
    BulkWriteError,
    ConfigurationError,
    ConnectionFailure,
    DocumentTooLarge,
    ExecutionTimeout,
    InvalidOperation,
    OperationFailure,
    PyMongoError,
    ServerSelectionTimeoutError,
    WriteConcernError,
)
from pymongo.read_concern import ReadConcern
from pymongo.write_concern import WriteConcern

from miniq.errors import Closed, InvalidRequest, MiniQError, NoSpace, StoreError, StoreUnavailable, TooLarge

log = logging.getLogger("miniq.mongodb")

T = TypeVar("T")
Session = AsyncClientSession
Database = AsyncDatabase[dict[str, Any]]
Collection = AsyncCollection[dict[str, Any]]

SELECTION_MS = 2000
"""How long a call waits for an unreachable server, unless the URL sets it."""
FAREWELL = 2.0
"""Seconds that closing waits for transactions to be aborted."""
APP = "miniq"
DATABASE = "miniq"
"""The database, unless the URL names one."""
OLDEST_WIRE = 17
"""The wire version of MongoDB 6.0."""
UNAVAILABLE = {6, 7, 50, 64, 89, 91, 100, 133, 189, 202, 262, 9001, 10107, 11600, 11602, 13435, 13436}
"""Codes of a server that is too slow, shuts down, is not primary, or cannot replicate a change."""
DUPLICATE = 11000
TOO_LARGE_FOR_CACHE = 388
DISK_FULL = {14031}
DENIED = {13, 18}


OBSTACLE = 0.5
"""Seconds after which a change that meets an open transaction looks whether that was abandoned."""
ABANDONED = 0.5
"""Seconds without a command after which a transaction counts as abandoned: ours send one command after the other."""


class Contended(StoreUnavailable):
    """Other transactions change the same documents."""


class Link:
    """A client and its database."""

    def __init__(self, url: str, *, durable: bool, connections: int, patience: float) -> None:
        self.patience = patience
        self._url = url
        self._connections = connections
        self._sure = WriteConcern("majority", j=True) if durable else WriteConcern(1)
        self._client: AsyncMongoClient[dict[str, Any]] | None = None
        self._aborts: set[asyncio.Task[None]] = set()
        self._sweeps: set[asyncio.Task[None]] = set()
        self._sweeper: AsyncMongoClient[dict[str, Any]] | None = None
        """A client with a connection of its own: those of the other may all be waiting for what it aborts."""
        self._options: dict[str, Any] = {}
        self._swept = 0.0

    async def open(self) -> None:
        """Connect; raises if the server lacks transactions or is too old."""
        # Not the driver's `timeout`, which would also apply to waiting for an unreachable server.
        defaults = {
            "serverSelectionTimeoutMS": SELECTION_MS,
            "connectTimeoutMS": SELECTION_MS,
            "socketTimeoutMS": round(self.patience * 1000),
            "waitQueueTimeoutMS": round(self.patience * 1000),
        }
        if self._connections:
            defaults["maxPoolSize"] = self._connections
        options: dict[str, Any] = {
            name: value for name, value in defaults.items() if f"{name}=".lower() not in self._url.lower()
        }
        try:
            with warnings.catch_warnings():
                # The driver only warns of unknown options.
                warnings.simplefilter("error", UserWarning)
                self._client = AsyncMongoClient(self._url, appname=APP, **options)
                _ = self.database
                self._options = options | {"appname": APP, "maxPoolSize": 1}
        except (PyMongoError, ValueError, UserWarning) as error:
            raise InvalidRequest(f"store: invalid MongoDB URL: {error}", field="store") from None
        try:
            with translated():
                hello = await self._client.admin.command("hello")
            _check_server(shown(self._url), hello)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Close all connections. Idempotent."""
        for sweep in self._sweeps:
            sweep.cancel()
        await asyncio.gather(*self._sweeps, return_exceptions=True)
        if self._aborts:
            _, late = await asyncio.wait(self._aborts, timeout=FAREWELL)
            for abort in late:
                abort.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        clients, self._client, self._sweeper = (self._client, self._sweeper), None, None
        for client in clients:
            if client is not None:
                await client.close()

    @property
    def client(self) -> AsyncMongoClient[dict[str, Any]]:
        if self._client is None:
            raise Closed("the store is closed")
        return self._client

    @property
    def database(self) -> Database:
        """Reads what a majority has committed; writes are confirmed by a majority, on disk."""
        return self.client.get_default_database(
            DATABASE,
            read_preference=ReadPreference.PRIMARY,
            read_concern=ReadConcern("majority"),
            write_concern=self._sure,
        )

    @contextmanager
    def call(self) -> Iterator[Database]:
        """The database for use without a transaction; translates errors."""
        database = self.database
        with translated():
            yield database

    async def patiently(self, work: Callable[[], Awaitable[T]]) -> T:
        """Make a change outside of transactions. If it meets a transaction that was abandoned, abort that."""
        with self.watching(time.monotonic() + self.patience):
            return await work()

    @contextmanager
    def watching(self, deadline: float) -> Iterator[None]:
        """Limits a write. While it takes long, transactions that were abandoned are aborted: the server tries again by
        itself to write what they have written, and then succeeds."""
        loop = asyncio.get_running_loop()
        timers: list[asyncio.TimerHandle] = []

        def look() -> None:
            sweep = loop.create_task(self.abort_abandoned())
            self._sweeps.add(sweep)
            sweep.add_done_callback(self._sweeps.discard)
            timers[:] = [loop.call_later(OBSTACLE, look)]

        timers.append(loop.call_later(OBSTACLE, look))
        try:
            with pymongo.timeout(max(0.05, deadline - time.monotonic())):
                yield
        finally:
            timers[0].cancel()

    async def transact(self, work: Callable[[Session], Awaitable[T]], *, again: bool = True) -> T:
        """Run `work` in a transaction and commit it. On a conflict, run it `again`, or raise `Contended`. So `work`
        must change nothing but the database."""
        client = self.client
        started = time.monotonic()
        deadline = started + self.patience
        pause = 0.001
        while True:
            session = client.start_session(causal_consistency=False)
            try:
                await session.start_transaction(ReadConcern("snapshot"), self._sure, ReadPreference.PRIMARY)
                answer = await work(session)
                await _commit(session, deadline)
            except PyMongoError as error:
                await self._abandon(session, answered=not _in_doubt(error))
                if not _may_repeat(error) or not again or time.monotonic() >= deadline:
                    raise translate(error) from error
            except MiniQError:
                await self._abandon(session, answered=True)
                raise
            except BaseException:
                await self._abandon(session, answered=False)
                raise
            else:
                await session.end_session()
                return answer
            if time.monotonic() - started > OBSTACLE:
                await self.abort_abandoned()
            await asyncio.sleep(random.uniform(0, pause))  # noqa: S311
            pause = min(pause * 2, 0.1)

    async def abort_abandoned(self) -> None:
        """Abort transactions of this database user that have been idle: their brokers were killed or hang. A broker
        that lives gets an error that makes it repeat its transaction."""
        if time.monotonic() - self._swept < OBSTACLE:
            return
        self._swept = time.monotonic()
        idle: list[dict[str, Any]] = [
            {"$currentOp": {"allUsers": False, "idleSessions": True}},
            {
                "$match": {
                    "type": "idleSession",
                    "appName": APP,
                    "transaction.timeInactiveMicros": {"$gt": round(ABANDONED * 1e6)},
                }
            },
            {"$project": {"lsid.id": 1}},
        ]
        try:
            if self._sweeper is None and self._client is not None:
                self._sweeper = AsyncMongoClient(self._url, **self._options)
            sweeper = self._sweeper or self.client
            with pymongo.timeout(2):
                cursor = await sweeper.admin.aggregate(idle)
                sessions = [{"id": one["lsid"]["id"]} for one in await cursor.to_list()]
                if sessions:
                    log.warning("aborting %d transactions of brokers that do not go on", len(sessions))
                    await sweeper.admin.command("killSessions", sessions)
        except (PyMongoError, Closed) as error:
            log.debug("abandoned transactions were not aborted: %s", error)

    async def _abandon(self, session: Session, *, answered: bool) -> None:
        """Abort a transaction; in the background if the server may not answer."""
        if answered:
            with suppress(PyMongoError), pymongo.timeout(1):
                await session.end_session()
        else:
            abort = asyncio.create_task(self._end_at_server(session))
            self._aborts.add(abort)
            abort.add_done_callback(self._aborts.discard)

    async def _end_at_server(self, session: Session) -> None:
        until = time.monotonic() + 60
        while self._client is not None and time.monotonic() < until:
            try:
                with pymongo.timeout(2):
                    await self._client.admin.command("killSessions", [session.session_id])
                    await session.end_session()
                return
            except PyMongoError:
                await asyncio.sleep(0.2)


async def _commit(session: Session, deadline: float) -> None:
    """Commit, and repeat while the result is unknown: a commit is idempotent."""
    while True:
        try:
            await session.commit_transaction()
            return
        except PyMongoError as error:
            unknown = error.has_error_label("UnknownTransactionCommitResult")
            if not unknown or isinstance(error, ServerSelectionTimeoutError) or time.monotonic() >= deadline:
                raise
            await asyncio.sleep(0.05)


def _may_repeat(error: PyMongoError) -> bool:
    """Whether a transaction was certainly aborted and may be retried."""
    if isinstance(error, ServerSelectionTimeoutError):
        return False  # the timeout was waited for already
    return error.has_error_label("TransientTransactionError")


def _in_doubt(error: PyMongoError) -> bool:
    """Whether the server may still have the transaction open."""
    return isinstance(error, ConnectionFailure) or error.timeout


def _check_server(where: str, hello: dict[str, Any]) -> None:
    if hello.get("maxWireVersion", 0) < OLDEST_WIRE:
        raise StoreError(f"store: the MongoDB at {where} is older than 6.0; use 6.0 or later", field="store")
    if "setName" not in hello and hello.get("msg") != "isdbgrid":
        raise StoreError(
            f"store: the MongoDB at {where} is a standalone server, and those have no transactions; start it with "
            "--replSet NAME and run rs.initiate() once (a set of one server is enough)",
            field="store",
        )


# Errors


@contextmanager
def translated() -> Iterator[None]:
    """Raise our errors instead of the driver's."""
    try:
        yield
    except (PyMongoError, BSONError) as error:
        raise translate(error) from error


def translate(error: Exception) -> MiniQError:
    """Our error for an error of the driver."""
    text = re.split(r" \(configured timeouts|, Timeout: |, full error: ", str(error))[0]
    code = error.code if isinstance(error, OperationFailure) else None
    if isinstance(error, BulkWriteError) and (failed := error.details.get("writeErrors")):
        code, text = failed[0].get("code"), str(failed[0].get("errmsg", text))
    if code == TOO_LARGE_FOR_CACHE:
        return TooLarge(f"messages: too large for one transaction of MongoDB, use fewer: {text}", field="messages")
    if isinstance(error, DocumentTooLarge):
        return TooLarge(f"body: a message does not fit into a document of MongoDB (16 MiB): {text}", field="body")
    if isinstance(error, ConfigurationError):
        if "Sessions are not supported" in text:  # as of a server that has just been started
            return StoreUnavailable(f"store: the database is not ready yet: {text}", field="store")
        return InvalidRequest(f"store: this MongoDB cannot be used: {text}", field="store")
    if isinstance(error, InvalidOperation):
        return Closed("the store is closed")
    if isinstance(error, ConnectionFailure):
        return StoreUnavailable(f"store: the database is unreachable: {text}", field="store")
    if isinstance(error, ExecutionTimeout) or (isinstance(error, PyMongoError) and error.timeout):
        return StoreUnavailable(f"store: the database did not answer in time: {text}", field="store")
    if code in DISK_FULL:
        return NoSpace(f"store: the disk of the database is full: {text}", field="store")
    if code in DENIED:
        return StoreError(f"store: the database refuses this user: {text}; see docs/howto/mongodb.md", field="store")
    if isinstance(error, WriteConcernError) or code in UNAVAILABLE:
        return StoreUnavailable(f"store: the database is not available: {text}", field="store")
    if isinstance(error, PyMongoError) and _may_repeat(error):
        return Contended(f"store: too many concurrent changes of the same messages: {text}", field="store")
    return StoreError(f"store: {text}", field="store")


def shown(url: str) -> str:
    """The servers in a URL, without user and password."""
    return re.sub(r"^mongodb(\+srv)?://([^/]*@)?", "", url).partition("/")[0]
