"""What `@app.task` and `@app.handler` refuse: functions that a worker cannot call, and what no broker would take. Every
error names the task or handler that it belongs to."""

from __future__ import annotations

import inspect
from typing import Any

from miniq.errors import BadName, InvalidRequest, show
from miniq.message import NAME, QueueChanges, Retry
from miniq.worker.plan import check_count

OPTIONS = {"task": ("queue", "name", "timeout"), "handler": ("batch", "linger", "timeout")}
"""What `@app.task` and `@app.handler` take beside the settings of a queue."""


def check_function(function: Any, of: str, use: str) -> None:
    """Refuse what cannot be called, and generator functions: calling one runs nothing of it. `use` says what would be
    right."""
    if not callable(function):
        raise InvalidRequest(f"{of}: {show(function)} is not a function; use {use}", field="function")
    call = getattr(function, "__call__", None)  # noqa: B004  not whether, but how it is called
    for each in (function, call):
        if inspect.isgeneratorfunction(each) or inspect.isasyncgenfunction(each):
            text = f"{of}: is a generator function: calling it runs nothing; use a function without yield"
            raise InvalidRequest(text, field="function")


def check_queue(queue: object, of: str) -> None:
    """Refuse what no queue can be called."""
    if not isinstance(queue, str) or NAME.fullmatch(queue) is None or queue in (".", ".."):
        text = f"{of}: queue: {show(queue)} is not a queue name; use 1 to 128 of A-Z a-z 0-9 . _ -"
        raise BadName(text, field="queue")


def check_setting(name: str, value: Any, kind: str, of: str) -> None:
    """Refuse a setting that no broker would take, in terms of the decorator."""
    if name not in QueueChanges.__annotations__:
        known = ", ".join([*OPTIONS[kind], *QueueChanges.__annotations__])
        raise InvalidRequest(f"{of}: a {kind} has no option {name!r}; use one of {known}", field=name)
    if name == "max_receives":
        check_count(name, value, of)
    elif name == "retry" and not isinstance(value, Retry):
        known = ", ".join(Retry.__struct_fields__)
        if not isinstance(value, dict):
            raise InvalidRequest(f"{of}: retry: {value!r}; use a dict with {known}", field=name)
        for field in value:
            if field not in Retry.__struct_fields__:
                raise InvalidRequest(f"{of}: retry: no field {field!r}; use {known}", field=name)
