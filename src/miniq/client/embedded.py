"""The in-process transport: a broker in this process, for programs that need no server.

Async: the broker runs in the caller's event loop. Sync: it runs in an event loop of its own in a daemon thread, to
which callers of any thread pass their calls. Both dispatch calls as a server does (`dispatch.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeVar

from miniq.api.operation import AsTable, Call
from miniq.api.operations import BY_REQUEST, AckById, Receive, operation_of
from miniq.broker import Broker
from miniq.client._async.transport import AsyncTransport, foreign_loop
from miniq.client._sync.client import Client
from miniq.client.give_back import release_of
from miniq.client.interrupts import interruptible, shield
from miniq.dispatch import CALLS, OWNER
from miniq.errors import FORK_ADVICE, Closed, InvalidRequest
from miniq.options import assembled, checked, dotted
from miniq.store import open_store

T = TypeVar("T")


def open(url: str, options: dict[str, Any]) -> Embedded:
    """A broker for callers of any thread; `url` is that of a store, `options` are fields of `Options`."""
    return Embedded(_make_broker(url, options))


async def open_async(url: str, options: dict[str, Any]) -> AsyncEmbedded:
    """A broker in the running event loop; `url` is that of a store, `options` are fields of `Options`."""
    broker = _make_broker(url, options)
    await broker.open()
    return AsyncEmbedded(broker)


def _make_broker(url: str, options: dict[str, Any]) -> Broker:
    """A broker that is not yet open."""
    if "store" in options:
        raise InvalidRequest(f"store: {options['store']!r} is given besides the url {url!r}", field="store")
    # A program that may open any URL can have a key for it; a store is protected by its own means.
    given = {name: checked(name, value) for name, value in dotted(options).items() if name != "api_key"}
    settings = assembled(given | {"store": url})
    return Broker(open_store(url, settings), settings)


class AsyncEmbedded:
    """Performs calls on a broker in the running event loop."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._loop = asyncio.get_running_loop()

    async def perform(self, call: Call[T]) -> T:
        if asyncio.get_running_loop() is not self._loop:
            raise foreign_loop()
        checked = _checked(call)
        reply: T = await CALLS[type(checked)](self._broker, checked, OWNER)
        return reply

    async def close(self) -> None:
        await self._broker.close()


class Embedded:
    """Performs calls from any thread on a broker in a thread of its own."""

    def __init__(self, broker: Broker) -> None:
        self._core = core = _Core(broker)
        # The core must not refer to this object: the finalizer runs when the object is collected, or at exit.
        self._closer = weakref.finalize(self, core.close)

    def perform(self, call: Call[T]) -> T:
        reply: T = self._core.perform(call)
        return reply

    def close(self) -> None:
        self._core.close()
        self._closer.detach()


class AsyncBeside:
    """Performs calls of an event loop on the broker of a blocking client, in that broker's thread."""

    def __init__(self, core: _Core) -> None:
        self._core = core
        self._loop = asyncio.get_running_loop()

    async def perform(self, call: Call[T]) -> T:
        if asyncio.get_running_loop() is not self._loop:
            raise foreign_loop()
        reply: T = await self._core.perform_async(call)
        return reply

    async def close(self) -> None:
        """The broker belongs to the blocking client."""


def beside(client: Client) -> AsyncTransport:
    """A transport for the running event loop, to the broker of a blocking client; traced if that one is."""
    inner = client._transport
    if isinstance(inner, Embedded):
        return AsyncBeside(inner._core)
    from miniq.client._async.tracing import TracedAsyncTransport
    from miniq.client._sync.tracing import TracedTransport

    assert isinstance(inner, TracedTransport) and isinstance(inner._inner, Embedded)  # noqa: S101, PT018
    return TracedAsyncTransport(AsyncBeside(inner._inner._core), inner._provider)


class _Ticket:
    """A call and its result. `done` is a lock that is held until there is a result: the cheapest thing for a thread to
    wait for."""

    __slots__ = ("call", "done", "error", "is_abandoned", "on_done", "reply", "task")

    def __init__(self, call: Call[Any]) -> None:
        self.call = call
        self.done = threading.Lock()
        self.done.acquire()
        self.reply: Any = None
        self.error: BaseException | None = None
        self.task: asyncio.Task[None] | None = None
        self.is_abandoned = False
        self.on_done: Callable[[], object] | None = None
        """Called instead of releasing `done`, in the broker's thread."""

    def wait(self) -> Any:
        interruptible(self.done.acquire)
        error = self.error
        if error is None:
            return self.reply
        try:
            raise error
        finally:
            del error, self  # avoids a reference cycle through the traceback


class _Core:
    """The thread, its loop and the broker in it."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._process = os.getpid()
        self._gate = threading.RLock()
        """Held while a call is passed to the thread, so that no call is added after closing began. A signal handler may
        call while its thread holds it."""
        self._closed = False
        self._failure: BaseException | None = None
        """The error of closing the broker."""
        self._tickets: set[_Ticket] = set()
        self._loop = asyncio.new_event_loop()
        self._ending = asyncio.Event()
        opened = _Ticket(Call())
        self._thread = threading.Thread(target=self._run, args=(opened,), name="miniq-broker", daemon=True)
        self._thread.start()
        opened.wait()

    def perform(self, call: Call[Any]) -> Any:
        """Pass a call to the broker's thread and wait for its result."""
        if self._process != os.getpid():
            raise Closed(f"the client was created before this process was forked, with its broker. {FORK_ADVICE}")
        with shield:
            ticket = _Ticket(_checked(call))
            with self._gate:
                if self._closed:
                    raise Closed("the client is closed")
                self._loop.call_soon_threadsafe(self._begin, ticket)
            try:
                return ticket.wait()
            except BaseException:
                if ticket.error is None:  # interrupted while waiting
                    self._abandon(ticket)
                raise

    async def perform_async(self, call: Call[Any]) -> Any:
        """The same for a caller in an event loop of another thread."""
        if self._process != os.getpid():
            raise Closed(f"the client was created before this process was forked, with its broker. {FORK_ADVICE}")
        loop, ticket = asyncio.get_running_loop(), _Ticket(_checked(call))
        done = asyncio.Event()
        ticket.on_done = partial(_set_in, loop, done)
        with self._gate:
            if self._closed:
                raise Closed("the client is closed")
            self._loop.call_soon_threadsafe(self._begin, ticket)
        try:
            await done.wait()
        except asyncio.CancelledError:
            self._abandon(ticket)
            raise
        if ticket.error is not None:
            raise ticket.error
        return ticket.reply

    def close(self) -> None:
        """Close the broker and end the thread. Safe to repeat, and in a forked child, which has neither."""
        if self._process != os.getpid():
            return
        with self._gate:
            if not self._closed:
                self._loop.call_soon_threadsafe(self._ending.set)
            self._closed = True
        if threading.current_thread() is self._thread:  # the garbage collector may run there
            return
        self._thread.join()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    # In the broker's thread

    def _run(self, opened: _Ticket) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._live(opened))
        finally:
            self._loop.close()

    async def _live(self, opened: _Ticket) -> None:
        try:
            await self._broker.open()
        except BaseException as error:
            self._closed = True
            opened.error = error
            return
        finally:
            opened.done.release()
        await self._ending.wait()
        # Running calls finish first, except long polls, which end with the broker.
        await _settled(ticket for ticket in self._tickets if ticket.is_abandoned or not _is_poll(ticket.call))
        try:
            await self._broker.close()
        except BaseException as error:
            self._failure = error
        await _settled(self._tickets)

    def _begin(self, ticket: _Ticket) -> None:
        self._tickets.add(ticket)
        ticket.task = self._loop.create_task(self._answer(ticket))

    async def _answer(self, ticket: _Ticket) -> None:
        call = ticket.call
        try:
            ticket.reply = await CALLS[type(call)](self._broker, call, OWNER)
        except BaseException as error:
            ticket.error = error
        self._tickets.discard(ticket)
        ticket.task = None
        if ticket.on_done is None:
            ticket.done.release()
        else:
            ticket.on_done()

    def _abandon(self, ticket: _Ticket) -> None:
        """Release what a caller that was interrupted would have received."""
        with self._gate:
            if not self._closed:
                self._loop.call_soon_threadsafe(self._give_back, ticket)

    def _give_back(self, ticket: _Ticket) -> None:
        call = ticket.call
        if not isinstance(call, Receive):
            return
        if ticket.task is not None:
            ticket.is_abandoned = True
            ticket.task.cancel()
        elif (release := release_of(call, ticket.reply)) is not None:
            self._begin(_Ticket(release))


def _checked(call: Call[Any]) -> Call[Any]:
    """Refuse a call with fields of the wrong type, as the wires do; the broker itself checks those of the hot calls."""
    if isinstance(call, AsTable):
        return AsTable(_checked(call.call))
    if isinstance(call, AckById):
        return call
    operation = operation_of(call)
    return call if operation.hot else operation.checked(call)


def _set_in(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    """Set an event of another thread's loop, unless that has ended."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(event.set)


async def _settled(tickets: Iterable[_Ticket]) -> None:
    """Wait until these calls are done."""
    tasks = [ticket.task for ticket in tickets if ticket.task is not None]
    if tasks:
        await asyncio.wait(tasks)


def _is_poll(call: Call[Any]) -> bool:
    operation = BY_REQUEST.get(type(call))
    return operation is not None and operation.long_poll
