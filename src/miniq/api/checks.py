"""Checks that a client makes before it sends a call: values that the wire would change, or cannot carry.

Everything else is validated by the broker.
"""

from __future__ import annotations

import math
from typing import Any

from miniq.errors import BadName, InvalidRequest, MessageNotFound


def check_text(value: object, field: str, number: int | None = None) -> None:
    """Refuse values that are not text but would become text on the wire, such as bytes."""
    if value is not None and not isinstance(value, str):
        raise _invalid(field, number, f"{value!r:.80} is not text")


def check_texts(values: Any, field: str) -> None:
    """Check each value of a list with `check_text`."""
    for value in values or ():
        check_text(value, field)


def check_number(value: object, field: str, number: int | None = None) -> None:
    """Refuse NaN and infinities, which JSON does not have."""
    if isinstance(value, float) and not math.isfinite(value):
        raise _invalid(field, number, f"{value!r} is not a number of seconds")


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
        raise _invalid("headers", number, f"{headers!r:.80} is not a map from text to text")
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise _invalid("headers", number, f"{name!r:.80}: {value!r:.80} is not text to text")


def check_name(value: object, field: str) -> None:
    """Refuse names that cannot be part of a path, and therefore cannot exist."""
    if isinstance(value, str) and value and "/" not in value:
        return
    if field == "id":
        raise MessageNotFound(f"id: there is no {value!r:.80}", field="id")
    kind = "queue name" if field == "queue" else "name"
    raise BadName(f"{field}: {value!r:.80} is not a {kind}; use 1 to 128 of A-Z a-z 0-9 . _ -", field=field)


def _invalid(field: str, number: int | None, text: str) -> InvalidRequest:
    """The error for a field, of the message with that number if there are several."""
    if number is not None:
        field = f"messages[{number}].{field}"
    return InvalidRequest(f"{field}: {text}", field=field)
