"""Whether a message can be one of Dramatiq: the types of its fields and options. Pure.

Dramatiq trusts what arrives: some of what is refused here would end the thread that consumes or works, some would keep
a message for ever, and some would lose it when it is tried again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from miniq.errors import InvalidRequest, show

FIELDS = ("queue_name", "actor_name", "args", "kwargs", "options")
"""What every message has."""
TEXTS = ("on_success", "on_failure", "on_retry_exhausted", "group_completion_uuid")
NUMBERS = ("eta", "delay", "max_age", "time_limit", "min_backoff", "max_backoff", "result_ttl")
COUNTS = ("retries", "max_retries", "broker_priority")
"""Options that Dramatiq and its middleware read, by type; each may be null."""
LATEST = 253402300799999
"""The last millisecond of the year 9999."""


def check(fields: Any, where: str = "") -> None:
    """Raise `InvalidRequest`, which says what is wrong, if Dramatiq could not work with these fields of a message."""
    _check_mapping(where.removesuffix(".") or "message", fields)
    for name in FIELDS:
        if name not in fields:
            raise _wrong(f"{where}{name}", "missing")
    for name in ("queue_name", "actor_name", "message_id"):
        if not isinstance(fields.get(name, ""), str):
            raise _wrong(f"{where}{name}", f"{show(fields[name])} is not text")
    if not isinstance(fields["args"], list | tuple):
        raise _wrong(f"{where}args", f"{show(fields['args'])} is not a list")
    _check_mapping(f"{where}kwargs", fields["kwargs"])
    if not _is_number(fields.get("message_timestamp", 0)):
        raise _wrong(
            f"{where}message_timestamp", f"{show(fields['message_timestamp'])} is not a number of milliseconds"
        )
    _check_mapping(f"{where}options", fields["options"])
    _check_options(fields["options"], f"{where}options.")


def _check_options(options: Mapping[str, Any], where: str) -> None:
    given = {name: value for name, value in options.items() if value is not None}
    for name in given.keys() & set(TEXTS):
        if not isinstance(given[name], str):
            raise _wrong(where + name, f"{show(given[name])} is not text")
    for name in given.keys() & set(NUMBERS):
        if not _is_number(given[name]):
            raise _wrong(where + name, f"{show(given[name])} is not a number of milliseconds")
    for name in given.keys() & set(COUNTS):
        if type(given[name]) is not int or given[name] < 0:
            raise _wrong(where + name, f"{show(given[name])} is not a whole number from 0")
    if given.get("throws") and not _is_exception(given["throws"]):
        raise _wrong(f"{where}throws", f"{show(given['throws'])} is not an exception class")
    if "pipe_target" in given:
        check(given["pipe_target"], f"{where}pipe_target.")
    callbacks = given.get("group_completion_callbacks", [])
    if not isinstance(callbacks, list | tuple):
        raise _wrong(f"{where}group_completion_callbacks", f"{show(callbacks)} is not a list of messages")
    for number, callback in enumerate(callbacks):
        check(callback, f"{where}group_completion_callbacks[{number}].")


def _check_mapping(where: str, value: Any) -> None:
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise _wrong(where, f"{show(value)} is not a mapping")


def _is_number(value: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, int | float) and -LATEST <= value <= LATEST


def _is_exception(value: Any) -> bool:
    return all(map(_is_exception, value)) if isinstance(value, tuple) else isinstance(value, type)


def _wrong(field: str, text: str) -> InvalidRequest:
    return InvalidRequest(f"{field}: {text}", field=field)
