"""What a message of Celery is about: the name of its task, its arguments in short, eta and retries. Pure.

The console shows the same (`console/tasks.js`).

Celery writes the arguments, shortened, into the headers `argsrepr` and `kwargsrepr`. A program that sends tasks without
them has them in the body: `[args, kwargs, …]`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

SHORT = 60
"""The most characters of the arguments."""


class Task(NamedTuple):
    """A task as people see it."""

    name: str
    id: str
    args: str
    """As in a call: `2, 3, **{'unit': 'cm'}`."""
    eta: str | None
    """As Celery wrote it, in ISO 8601; None if it may run at once."""
    retries: int


def task_of(id: str, headers: Mapping[str, str], body: bytes) -> Task | None:
    """The task of a message with that id, headers and body; None if it is no message of Celery."""
    name = headers.get("task")
    if name is None:
        return None
    args, kwargs = headers.get("argsrepr"), headers.get("kwargsrepr")
    shown = _of_body(body) if args is None and kwargs is None else _call(_text(args), _text(kwargs))
    eta = _value(headers.get("eta"))
    retries = _value(headers.get("retries"))
    return Task(
        _text(name),
        _text(headers.get("id")) or id,
        shown if len(shown) <= SHORT else f"{shown[: SHORT - 1]}…",
        eta if isinstance(eta, str) and eta != "None" else None,
        retries if type(retries) is int else 0,
    )


def _call(args: str, kwargs: str) -> str:
    """`(2, 3)` and `{'unit': 'cm'}`, which are Python's, as in a call."""
    inner = args[1:-1].rstrip(",") if args[:1] in ("(", "[") and args[-1:] in (")", "]") else args
    named = "" if kwargs in ("", "{}") else f"**{kwargs}"
    return ", ".join(part for part in (inner, named) if part)


def _of_body(body: bytes) -> str:
    value = _value(body.decode(errors="replace"))
    if not (isinstance(value, list) and len(value) >= 2 and isinstance(value[0], list) and isinstance(value[1], dict)):
        return ""
    named = [f"{name}={each!r}" for name, each in value[1].items()]
    return ", ".join([*map(repr, value[0]), *named])


def _text(header: str | None) -> str:
    """A header that is text; in quotes if it would read as something else."""
    value = _value(header)
    return value if isinstance(value, str) else header or ""


def _value(text: str | None) -> Any:
    """The JSON value that a text is, else the text itself."""
    if text is None:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
