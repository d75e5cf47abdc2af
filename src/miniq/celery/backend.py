"""Celery's result backend on MiniQ: `result_backend = "miniq://127.0.0.1:5000"`.

The state of a task is a result that MiniQ keeps under the task's id (`miniq result celery.results ID` shows it). The
broker wakes the callers that wait for it. A state that comes later replaces the one before only if that is still what
it was, so that a lost worker cannot overwrite a success. Groups and chords are kept beside them (`chords.py`).
"""

from __future__ import annotations

import os
import time
from base64 import b64decode, b64encode
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from queue import Empty, SimpleQueue
from threading import Event, Lock, Thread
from typing import Any

from celery import states
from celery.backends.base import KeyValueStoreBackend
from celery.exceptions import ImproperlyConfigured, TimeoutError
from kombu.exceptions import EncodeError
from kombu.utils.url import maybe_sanitize_url

from miniq.celery.chords import Chords
from miniq.celery.urls import read_address
from miniq.client._sync.client import Client
from miniq.client.keeping import FOREVER, Keeping, id_of
from miniq.errors import Closed, InvalidRequest, MiniQError, Overloaded, StoreUnavailable
from miniq.result import Progress

QUEUE = "celery.results"
WAIT = 20.0
"""The longest that one call waits."""
TURN = 1.0
"""The longest that a call waits for one of many results before it looks at others."""
WAITERS = 8
"""How many results of a group are waited for at a time."""
_JSON = "application/json"


class Backend(Chords, KeyValueStoreBackend):
    """Keeps the states and results of tasks in MiniQ."""

    supports_autoexpire = True
    supports_native_join = True
    persistent = True

    def __init__(self, app: Any, url: str | None = None, **options: Any) -> None:
        super().__init__(app, url=url, **options)
        given = dict(app.conf.get("result_backend_transport_options") or {})
        try:
            address = read_address(url or "miniq://", "result_backend")
        except InvalidRequest as error:
            raise ImproperlyConfigured(error.text) from None
        queue = str(given.pop("queue", address.others.get("queue", QUEUE)))
        given.pop("global_keyprefix", None)
        self._address = address
        self._options = given
        self._client: Client | None = None
        self._process = os.getpid()
        self._connecting = Lock()
        self.kept = Keeping(self.client, queue, self.expires or FOREVER)

    def client(self) -> Client:
        """The client of this process: prefork workers are forked from a process that may have had one."""
        if self._process != os.getpid():
            self._client, self._process, self._connecting = None, os.getpid(), Lock()
        with self._connecting:
            if self._client is None:
                try:
                    self._client = self._address.connect(**self._options)
                except InvalidRequest as error:
                    raise ImproperlyConfigured(f"result_backend: {error.text}") from None
            return self._client

    def as_uri(self, include_password: bool = False) -> str:
        url = self.url or "miniq://"
        return url if include_password else str(maybe_sanitize_url(url))

    def exception_safe_to_retry(self, exc: BaseException) -> bool:
        return isinstance(exc, StoreUnavailable | Overloaded)

    def __reduce__(self, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        return super().__reduce__(args, {"url": self.url, "expires": self.expires, **(kwargs or {})})

    # Values

    def get(self, key: bytes | str) -> Any:
        return self.decoded(self.kept.get(_id(key)))

    def mget(self, keys: Iterable[bytes | str]) -> list[Any]:
        return [self.get(key) for key in keys]

    def set(self, key: bytes | str, value: Any) -> None:
        self.kept.put(_id(key), self.encoded(value), self.expires)

    def delete(self, key: bytes | str) -> None:
        self.kept.forget(_id(key))

    def encoded(self, payload: str | bytes) -> bytes:
        """What a serializer wrote, as JSON: as it is, or in base64."""
        data = payload.encode() if isinstance(payload, str) else payload
        return data if self.content_type == _JSON else b'"%b"' % b64encode(data)

    def decoded(self, found: Progress | None) -> Any:
        """What a serializer wrote; None if nothing is kept."""
        if found is None or found.result is None:
            return None
        return found.result if self.content_type == _JSON else b64decode(found.result[1:-1])

    def _meta(self, found: Progress | None) -> dict[str, Any]:
        """The state of a task."""
        payload = self.decoded(found)
        if payload is None:
            return {"status": states.PENDING, "result": None}
        return dict(self.decode_result(payload))

    # States of tasks

    def _get_task_meta_for(self, task_id: str) -> dict[str, Any]:
        return self._meta(self.kept.get(id_of(_text(task_id))))

    def _forget(self, task_id: str) -> None:
        self.kept.forget(id_of(_text(task_id)))

    def _store_result(
        self, task_id: str, result: Any, state: str, traceback: Any = None, request: Any = None, **_: Any
    ) -> Any:
        meta = self._get_result_meta(result=result, state=state, traceback=traceback, request=request)
        meta["task_id"] = task_id = _text(task_id)
        try:
            self._replace(id_of(task_id), self.encoded(self.encode(meta)), state)
        except InvalidRequest as error:
            if error.field != "result":
                raise
            raise EncodeError(error.text) from None  # too large, or NaN: the task fails, as with other serializers
        return result

    def _replace(self, id: str, value: bytes, state: str) -> None:
        """Keep a state, unless the task has succeeded before."""
        final = state in states.READY_STATES
        if state == states.SUCCESS:
            self.kept.put(id, value, self.expires)
            return
        was: Progress | None = None
        while not self.kept.put(id, value, self.expires, final=final, was=was, new=was is None):
            was = self.kept.get(id)
            if was is not None and self._meta(was)["status"] == states.SUCCESS:
                return

    # Waiting

    def wait_for_pending(
        self,
        result: Any,
        timeout: float | None = None,
        interval: float = 0.5,
        no_ack: bool = True,
        on_message: Callable[[dict[str, Any]], object] | None = None,
        on_interval: Any = None,
        callback: Any = None,
        propagate: bool = True,
    ) -> Any:
        self._ensure_not_eager()
        meta = self.wait_for(result.id, timeout, interval, no_ack, on_interval, on_message)
        result._maybe_set_cache(meta)
        return result.maybe_throw(propagate=propagate, callback=callback)

    def wait_for(
        self,
        task_id: str,
        timeout: float | None = None,
        interval: float = 0.5,
        no_ack: bool = True,
        on_interval: Any = None,
        on_message: Callable[[dict[str, Any]], object] | None = None,
    ) -> dict[str, Any]:
        """The state of a task once it is ready. A call waits at the broker; it returns every `interval` only for
        `on_message`, which is told of other states, and for an `on_interval` that does something."""
        self._ensure_not_eager()
        deadline = None if timeout is None else time.monotonic() + timeout
        pause = min(WAIT, max(interval or 0.5, 0.05)) if on_message is not None or _acts(on_interval) else WAIT
        told: int | None = None
        found: Progress | None = None
        cached = self._cache.get(task_id)
        if cached is not None and cached["status"] in states.READY_STATES:
            return dict(cached)
        id = id_of(_text(task_id))
        while True:
            left = pause if deadline is None else min(pause, max(0.0, deadline - time.monotonic()))
            found = self._patiently(id, left)
            if found is not None and on_message is not None and found.finished_at != told:
                told = found.finished_at
                on_message(self._meta(found))
            if found is not None and found.is_final:
                meta = self._meta(found)
                if meta["status"] == states.SUCCESS:
                    self._cache[task_id] = meta
                elif on_interval is not None:
                    on_interval()  # which raises the error of a part of a chord, instead of the ChordError of its body
                return meta
            if on_interval is not None:
                on_interval()
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError("The operation timed out.")

    def _patiently(self, id: str, wait: float) -> Progress | None:
        """One long poll. While the broker is unreachable, the caller goes on waiting, up to its deadline."""
        try:
            return self.kept.get(id, wait)
        except (StoreUnavailable, Overloaded):
            time.sleep(min(wait, 0.5))
            return None

    def get_many(
        self,
        task_ids: Iterable[str],
        timeout: float | None = None,
        interval: float | None = 0.5,
        no_ack: bool = True,
        on_message: Callable[[dict[str, Any]], object] | None = None,
        on_interval: Any = None,
        max_iterations: int | None = None,
        READY_STATES: frozenset[str] = states.READY_STATES,
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """The states of tasks as they become ready, in any order."""
        ids = list(dict.fromkeys(map(_text, task_ids)))
        deadline = None if timeout is None else time.monotonic() + timeout
        pending: list[str] = []
        for task_id in ids:
            meta = self._cache.get(task_id) or self._get_task_meta_for(task_id)
            if meta["status"] in READY_STATES:
                yield self._ready(task_id, meta, on_message)
            else:
                pending.append(task_id)
        if not pending or max_iterations:
            return
        with Waiters(self._patiently, pending) as waiters:
            for _ in pending:
                while (arrived := waiters.next(deadline, on_interval)) is None:
                    if deadline is not None and time.monotonic() >= deadline:
                        raise TimeoutError(f"Operation timed out ({timeout})")
                yield self._ready(arrived[0], self._meta(arrived[1]), on_message)

    def _ready(
        self, task_id: str, meta: dict[str, Any], on_message: Callable[[dict[str, Any]], object] | None
    ) -> tuple[str, dict[str, Any]]:
        self._cache[task_id] = meta
        if on_message is not None:
            on_message(meta)
        return task_id, meta


class Waiters:
    """Waits for many results at a time, each in turn for a while, from a few threads."""

    def __init__(self, wait: Callable[[str, float], Progress | None], task_ids: list[str]) -> None:
        self._wait = wait
        self._left = deque(task_ids)
        self._arrived: SimpleQueue[tuple[str, Progress] | MiniQError] = SimpleQueue()
        self._over = Event()
        self._threads = [Thread(target=self._run, daemon=True) for _ in range(min(WAITERS, len(task_ids)))]

    def __enter__(self) -> Waiters:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()

    def next(self, deadline: float | None, on_interval: Any) -> tuple[str, Progress] | None:
        """A result that has arrived; None at the deadline, or after a while."""
        left = TURN if deadline is None else min(TURN, max(0.0, deadline - time.monotonic()))
        try:
            arrived = self._arrived.get(timeout=left)
        except Empty:
            if on_interval is not None:
                on_interval()
            return None
        if isinstance(arrived, MiniQError):
            raise arrived
        return arrived

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                task_id = self._left.popleft()
            except IndexError:
                return
            try:
                found = self._wait(id_of(task_id), TURN)
            except Closed:
                return
            except MiniQError as error:
                self._arrived.put(error)
                return
            if found is not None and found.is_final:
                self._arrived.put((task_id, found))
            else:
                self._left.append(task_id)


def _acts(on_interval: Any) -> bool:
    """Whether there is something to do while waiting: Celery passes an empty promise otherwise."""
    if on_interval is None:
        return False
    parts = [getattr(on_interval, name, None) for name in ("fun", "_svpending", "_lvpending")]
    return not hasattr(on_interval, "_svpending") or any(part for part in parts)


def _id(key: bytes | str) -> str:
    return id_of(_text(key))


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
