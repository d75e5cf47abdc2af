"""Whether a message can be a task of Celery: the types in its headers and its body. Pure.

Celery trusts what arrives; most of what is refused here would end its worker, again after each restart. In protocol 2
the task is in the headers and the body is a list of args, kwargs and options; in protocol 1 the body is a mapping that
has it all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from celery.canvas import Signature
from celery.utils.time import maybe_iso8601

from miniq.errors import InvalidRequest, show

LISTS = ("callbacks", "errbacks", "chain")
"""The options of a task that are lists of signatures."""

DEEPEST = 300
"""Levels of nesting. A worker passes tasks to its processes by pickle, which cannot do more than about 450."""


def check(headers: Mapping[str, Any], body: Any) -> None:
    """Raise `InvalidRequest`, which says what is wrong, if Celery could not read a message as a task."""
    _check_depth("headers", headers)
    _check_depth("body", body)
    if "task" not in headers:
        if not isinstance(body, Mapping) or "task" not in body:
            raise _wrong("task", "missing; a task has its name in the header `task`")
        _check_text("task", body["task"])
        if isinstance(body.get("id"), bool) or not isinstance(body.get("id"), str | int):
            raise _wrong("id", f"{show(body.get('id'))} is not text")
    _check_headers(headers)
    if isinstance(body, Mapping) and ("task" not in headers or "args" in body):
        _check_headers(body)
        _check_call("", body.get("args", ()), body.get("kwargs", {}))
        _check_options(body)
        return
    if not isinstance(body, list | tuple) or len(body) != 3:
        raise _wrong("body", f"{show(body)} is not a list of args, kwargs and options")
    args, kwargs, options = body
    _check_call("", args, kwargs)
    if options is not None:
        _check_mapping("options", options)
        _check_options(options)


def _check_headers(fields: Mapping[str, Any]) -> None:
    limits = fields.get("timelimit")
    if limits and not (isinstance(limits, list | tuple) and len(limits) == 2 and all(map(_is_seconds, limits))):
        raise _wrong("timelimit", f"{show(limits)} is not a list of two numbers of seconds")
    for name in ("eta", "expires"):
        if fields.get(name) is not None:
            _check_moment(name, fields[name])
    retries = fields.get("retries")
    if retries is not None and type(retries) is not int:
        raise _wrong("retries", f"{show(retries)} is not a whole number")
    if fields.get("stamped_headers") is not None:
        names = fields["stamped_headers"]
        if not isinstance(names, list | tuple | set) or not all(isinstance(name, str) for name in names):
            raise _wrong("stamped_headers", f"{show(names)} is not a list of names")
        _check_mapping("stamps", fields.get("stamps"))
        for name in names:
            if name not in fields["stamps"]:
                raise _wrong("stamps", f"{show(name)} of `stamped_headers` is missing")


def _check_moment(name: str, given: Any) -> None:
    try:
        moment = maybe_iso8601(given)
        if not isinstance(moment, datetime):
            raise ValueError
        if moment.tzinfo is not None:
            moment.astimezone(UTC)
    except (ValueError, TypeError, AttributeError, OverflowError):
        raise _wrong(name, f"{show(given)} is not a moment in ISO 8601") from None


def _check_call(where: str, args: Any, kwargs: Any) -> None:
    if not isinstance(args, list | tuple):
        raise _wrong(f"{where}args", f"{show(args)} is not a list")
    _check_mapping(f"{where}kwargs", kwargs)


def _check_options(options: Mapping[str, Any]) -> None:
    for name in LISTS:
        signatures = options.get(name)
        if signatures is not None:
            _check_signatures(name, signatures)
    if options.get("chord") is not None:
        _check_signature("chord", options["chord"])


def _check_signatures(where: str, signatures: Any) -> None:
    if not isinstance(signatures, list | tuple):
        raise _wrong(where, f"{show(signatures)} is not a list of signatures")
    for number, signature in enumerate(signatures):
        _check_signature(f"{where}[{number}]", signature)


def _check_signature(where: str, signature: Any) -> None:
    """A task that is yet to be sent: a mapping of `task`, `args`, `kwargs` and `options`."""
    _check_mapping(where, signature)
    _check_text(f"{where}.task", signature.get("task"))
    _check_call(f"{where}.", signature.get("args"), signature.get("kwargs"))
    _check_mapping(f"{where}.options", signature.get("options"))
    kind = signature.get("subtask_type")
    if kind is not None and (not isinstance(kind, str) or kind not in Signature.TYPES):
        raise _wrong(f"{where}.subtask_type", f"{show(kind)} is not a kind of signature")
    if kind in ("group", "chain"):
        _check_signatures(f"{where}.kwargs.tasks", signature["kwargs"].get("tasks"))


def _check_depth(where: str, value: Any) -> None:
    level = [value] if isinstance(value, Mapping | list | tuple) else []
    for _ in range(DEEPEST + 1):
        inside = [each.values() if isinstance(each, Mapping) else each for each in level]
        level = [each for values in inside for each in values if isinstance(each, Mapping | list | tuple)]
        if not level:
            return
    raise _wrong(where, f"nested more than {DEEPEST} levels deep")


def _check_mapping(where: str, value: Any) -> None:
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise _wrong(where, f"{show(value)} is not a mapping")


def _check_text(where: str, value: Any) -> None:
    if not isinstance(value, str) or not value:
        raise _wrong(where, f"{show(value)} is not the name of a task")


def _is_seconds(value: Any) -> bool:
    if value is None:
        return True
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0


def _wrong(field: str, text: str) -> InvalidRequest:
    return InvalidRequest(f"{field}: {text}", field=field)
