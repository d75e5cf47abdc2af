"""Checks that a client makes before it sends a call: values that the wire would change, or cannot carry.

Everything else is validated by the broker.
"""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

from miniq.errors import NUMBERS, SECONDS, WHOLE_NUMBER, BadName, InvalidRequest, MessageNotFound, require_moment, show


def check_text(value: object, field: str, number: int | None = None) -> None:
    """Refuse values that are not text but would become text on the wire, such as bytes."""
    if value is not None and not isinstance(value, str):
        raise _invalid(field, number, f"{show(value)} is not text")


def check_texts(values: Any, field: str) -> None:
    """Check each value of a list with `check_text`."""
    for value in values or ():
        check_text(value, field)


def check_number(value: object, field: str, number: int | None = None) -> None:
    """Refuse values that are not numbers, such as text, which a query would make one of, and NaN and infinities, which
    JSON does not have."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise _invalid(field, number, f"{show(value)} is not {NUMBERS.get(field, SECONDS)}")
    _check_finite(value, field, number)


def check_whole_number(value: object, field: str, number: int | None = None) -> None:
    """Refuse values that are not whole numbers, such as text, which a query would make one of."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
        raise _invalid(field, number, f"{show(value)} is not {WHOLE_NUMBER}")


def _check_finite(value: object, field: str, number: int | None = None) -> None:
    """Refuse NaN and infinities, which JSON does not have, and durations, which would become text."""
    if isinstance(value, timedelta) or (isinstance(value, float) and not math.isfinite(value)):
        raise _invalid(field, number, f"{show(value)} is not {NUMBERS.get(field, SECONDS)}")


def check_moment(value: object, field: str, number: int | None = None) -> None:
    """Refuse text in place of a moment, which the wire would take, and moments without an offset from UTC."""
    if value is not None:
        require_moment(value, _place(field, number))


def check_map(values: Any) -> None:
    """Check the values of a map whose names the broker validates."""
    for name, value in values.items():
        _check_finite(value, name)
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


def check_name(value: object, field: str, id_kind: str = "message id") -> None:
    """Refuse names that cannot be part of a path, and therefore cannot exist. `id_kind` is what an `id` is."""
    if isinstance(value, str) and value and "/" not in value:
        return
    if field == "id":
        raise MessageNotFound(f"id: {show(value)} is not a {id_kind}", field="id")
    kind = "queue name" if field == "queue" else "name"
    raise BadName(f"{field}: {show(value)} is not a {kind}; use 1 to 128 of A-Z a-z 0-9 . _ -", field=field)


def _place(field: str, number: int | None) -> str:
    return field if number is None else f"messages[{number}].{field}"


def _invalid(field: str, number: int | None, text: str) -> InvalidRequest:
    """The error for a field, of the message with that number if there are several."""
    field = _place(field, number)
    return InvalidRequest(f"{field}: {text}", field=field)
