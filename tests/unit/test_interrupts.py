"""Signals during a call: handled while it waits or at its end, and a second one at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import pytest

from miniq.client.interrupts import interruptible, shield, uninterrupted

Seen = list[str]


@pytest.fixture(autouse=True)
def default_handler() -> Iterator[None]:
    """Other tests in this process may have left a handler of theirs."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def seen() -> Iterator[Seen]:
    """Where a handler of SIGTERM notes that it ran."""
    found: Seen = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: found.append("handled"))
    yield found
    signal.signal(signal.SIGTERM, before)


def test_a_signal_is_handled_at_the_end() -> None:
    reached = []

    def call() -> None:
        with shield:
            with shield:
                signal.raise_signal(signal.SIGINT)
            reached.append("the end")

    with pytest.raises(KeyboardInterrupt):
        call()
    assert reached
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_signal_is_handled_at_once_while_the_thread_waits() -> None:
    def wait() -> None:
        signal.raise_signal(signal.SIGINT)
        raise AssertionError("not interrupted")

    with shield, pytest.raises(KeyboardInterrupt):
        shield.wait(wait)


def test_a_signal_that_came_before_the_wait_is_handled_when_it_begins() -> None:
    with shield:
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            shield.wait(pytest.fail, "waited")


def test_a_second_signal_is_handled_at_once() -> None:
    with shield:
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_an_uninterrupted_call_ignores_the_waits_within_it_and_a_second_signal_ends_it() -> None:
    def call() -> str:
        signal.raise_signal(signal.SIGINT)
        return interruptible(str, "done")

    with shield:
        assert uninterrupted(call) == "done"
        with pytest.raises(KeyboardInterrupt):
            interruptible(pytest.fail, "waited")
        with pytest.raises(KeyboardInterrupt):
            uninterrupted(lambda: [call(), call()])


def test_a_handler_that_calls_while_the_thread_waits_is_shielded_too(seen: Seen) -> None:
    def handler(number: int, frame: object) -> None:
        with shield:
            signal.raise_signal(signal.SIGTERM)
            seen.append("called")

    before = signal.signal(signal.SIGINT, handler)
    try:
        with shield:
            shield.wait(signal.raise_signal, signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen == ["called", "handled"]


def test_a_handler_that_is_installed_meanwhile_stays(seen: Seen) -> None:
    with shield:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN


def test_a_signal_without_a_handler_of_python_is_left_alone() -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        with shield:
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)


def test_other_threads_are_not_concerned(seen: Seen) -> None:
    def call() -> None:
        with shield:
            shield.wait(seen.append, "waited")

    with shield:
        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
        signal.raise_signal(signal.SIGTERM)
        seen.append("still shielded")
    assert seen == ["waited", "still shielded", "handled"]
