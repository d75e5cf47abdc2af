"""Deliveries to a worker of Celery, which ends with every exception that a message causes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from kombu.transport.base import Message

from miniq.errors import InvalidRequest

WORKER = "celery.worker"
"""The package of the functions that get a worker's messages."""


def is_worker(callback: Callable[[Any], Any]) -> bool:
    """Whether it is a worker of Celery that consumes with this callback, and not another program that uses kombu."""
    consumer = getattr(callback, "__self__", None)
    handlers = [getattr(consumer, name, None) for name in ("on_decode_error", "on_message")]
    for handler in [*handlers, *(getattr(consumer, "callbacks", None) or ())]:
        function = handler.func if isinstance(handler, partial) else handler
        if str(getattr(function, "__module__", "")).startswith(WORKER):
            return True
    return False


def check(callback: Any, message: Message) -> None:
    """`InvalidRequest` if a worker consumes tasks with this callback, and the message cannot be one."""
    from miniq.celery import malformed  # as Celery itself is here

    consumer: Any = getattr(callback, "__self__", None)
    if not _takes_tasks(consumer):
        return
    if consumer.accept is not None:
        message.accept = consumer.accept
    if message.errors:
        raise _undecodable(message.errors[0][1])
    try:
        body = message.payload
    except Exception as error:
        raise _undecodable(error) from None
    malformed.check(message.headers, body)


def _takes_tasks(consumer: Any) -> bool:
    """Whether it is the consumer of tasks, as against those of events and commands."""
    worker = getattr(getattr(consumer, "on_decode_error", None), "__self__", None)
    return worker is not None and getattr(worker, "task_consumer", None) is consumer


def _undecodable(error: Any) -> InvalidRequest:
    return InvalidRequest(f"body: cannot be decoded: {type(error).__name__}: {error}", field="body")
