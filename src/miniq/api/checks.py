"""Checks that a client makes before it sends a call: values that the wire would change, or cannot carry.

Everything else is validated by the broker.
"""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

from miniq.errors import BadName, InvalidRequest, MessageNotFound, require_moment, show

_KINDS = {
    "rate": "number of messages per second",
    **dict.fromkeys(("max_receives", "max_length", "max_bytes", "max_in_flight"), "whole number"),
}
"""What numbers are, if they are not seconds."""


def check_text(value: object, field: str, number: int | None = None) -> None:
    """Refuse values that are not text but would become text on the wire, such as bytes."""
    if value is not None and not isinstance(value, str):
        raise _invalid(field, number, f"{show(value)} is not text")


def check_texts(values: Any, field: str) -> None:
    """Check each value of a list with `check_text`."""
    for value in values or ():
        check_text(value, field)


def check_number(value: object, field: str, number: int | None = None) -> None:
    """Refuse NaN and infinities, which JSON does not have, and durations, which would become text."""
    if isinstance(value, timedelta) or (isinstance(value, float) and not math.isfinite(value)):
        raise _invalid(field, number, f"{show(value)} is not a {_KINDS.get(field, 'number of seconds, such as 1.5')}")


def check_moment(value: object, field: str, number: int | None = None) -> None:
    """Refuse text in place of a moment, which the wire would take, and moments without an offset from UTC."""
    if value is not None:
        require_moment(value, _place(field, number))


def check_map(values: Any) -> None:
    """Check the values of a map whose names the broker validates."""
    for name, value in values.items():
        check_number(value, name)
        if isinstance(value, bytes | bytearray):
            check_text(value, name)


def check_headers(headers: Any, number: int | None = None) -> None:
    """Refuse headers that are not a map from text to text."""
    if headers is None:
        return
    if not isinstance(headers, dict):
        raise _invalid("headers", number, f"{show(headers)} is not a map from text to text")
    for name, value in headers.items():
        if not isinstance(name, str):
            raise _invalid("headers", number, f"{show(name)} is not a name; use text")
        if not isinstance(value, str):
            raise _invalid("headers", number, f"the value of {show(name)} is {show(value)}; use text")


def check_name(value: object, field: str) -> None:
    """Refuse names that cannot be part of a path, and therefore cannot exist."""
    if isinstance(value, str) and value and "/" not in value:
        return
    if field == "id":
        raise MessageNotFound(f"id: {show(value)} is not the id of a message or key", field="id")
    kind = "queue name" if field == "queue" else "name"
    raise BadName(f"{field}: {show(value)} is not a {kind}; use 1 to 128 of A-Z a-z 0-9 . _ -", field=field)


def _place(field: str, number: int | None) -> str:
    return field if number is None else f"messages[{number}].{field}"


def _invalid(field: str, number: int | None, text: str) -> InvalidRequest:
    """The error for a field, of the message with that number if there are several."""
    field = _place(field, number)
    return InvalidRequest(f"{field}: {text}", field=field)
