"""The settings of a queue: what a new queue has, and which changes are valid. No I/O and no clock."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from msgspec.structs import asdict, replace

from miniq.broker import rules
from miniq.errors import BadName, InvalidRequest, TooLarge, show
from miniq.message import NAME, NAME_LENGTH, History, QueueSettings, Retry
from miniq.options import Limits

MIN_RATE, MAX_RATE = 0.001, 1_000_000
MOST_TAGS, TAG_NAME, TAG_VALUE = 50, 128, 256
"""How many tags a queue or topic may have, and the characters of their names and values."""
SQS_BYTES = 64 * 1024
_RETRY = ", ".join(Retry.__struct_fields__)


def default(name: str) -> QueueSettings:
    """The settings of a new queue. What fails in a dead-letter queue stays there."""
    has_none = name.endswith(rules.DEAD) or len(name) + len(rules.DEAD) > NAME_LENGTH
    return QueueSettings(max_receives=None) if has_none else QueueSettings()


def change(name: str, current: QueueSettings | None, changes: Mapping[str, Any], limits: Limits) -> QueueSettings:
    """The settings of a queue after `changes`, which are checked."""
    settings = current or default(name)
    changes = dict(changes)
    for field, value in changes.items():
        if field in ("visibility_timeout", "delay"):
            high = limits.visibility_timeout if field == "visibility_timeout" else limits.delay
            rules.check_seconds(value, field, 0, high)
        elif field in ("retention", "dedup_window", "claim_retention", "results"):
            rules.check_seconds(value, field, 0, rules.YEARS_100)
        elif field == "max_receives":
            if value is not None:
                rules.check_count(value, field, 1, 1_000_000)
        elif field == "retry":
            changes[field] = _retry(value, settings.retry, limits)
        elif field in ("max_length", "max_bytes", "max_in_flight"):
            rules.check_count(value, field, 0, 2**53)
        elif field == "rate":
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number or not (value == 0 or MIN_RATE <= value <= MAX_RATE):
                text = f"rate: {show(value)}; use messages per second from {MIN_RATE} to {MAX_RATE}, or 0"
                raise InvalidRequest(text, field=field)
        elif field in ("paused", "group_batch"):
            if not isinstance(value, bool):
                raise InvalidRequest(f"{field}: {show(value)}; use true or false", field=field)
        elif field in ("tags", "sqs"):
            changes[field] = texts(field, value, getattr(settings, field))
        elif field == "history":
            if value not in get_args(History):
                raise InvalidRequest(f"history: {show(value)}; use off, events or full", field=field)
        elif field == "dead_letter_queue":
            if value is not None:
                rules.check_name(value, field)
        else:
            known = ", ".join(QueueSettings.__struct_fields__)
            field = field[:80]
            raise InvalidRequest(f"{field}: no such setting; there are {known}", field=field)
    settings = replace(settings, **changes)
    dead = None if settings.max_receives is None else rules.dead_letter_queue(name, settings)
    if name in (dead, changes.get("dead_letter_queue")):
        text = f"dead_letter_queue: {name!r} cannot be its own dead-letter queue; name another"
        raise InvalidRequest(text, field="dead_letter_queue")
    if dead is not None and NAME.fullmatch(dead) is None:
        raise BadName(
            f"dead_letter_queue: {dead!r} is too long for a queue name; choose one of up to 128 characters",
            field="dead_letter_queue",
        )
    return settings


def _retry(value: object, current: Retry, limits: Limits) -> Retry:
    """A retry policy; what it does not give stays as it is."""
    if isinstance(value, Retry):
        value = asdict(value)
    if not isinstance(value, dict):
        raise InvalidRequest(f"retry: {show(value)}; use an object with {_RETRY}", field="retry")
    for name, number in value.items():
        field = f"retry.{name}"[:80]
        if name in ("delay", "max"):
            rules.check_seconds(number, field, 0, limits.delay)
        elif name not in Retry.__struct_fields__:
            raise InvalidRequest(f"{field}: no such field; there are {_RETRY}", field=field)
        else:
            low, high = (1, 1000) if name == "factor" else (0, 1)
            if isinstance(number, bool) or not isinstance(number, int | float) or not low <= number <= high:
                is_number = isinstance(number, int | float) and not isinstance(number, bool)
                problem = "out of range" if is_number else "not a number"
                raise InvalidRequest(f"{field}: {show(number)} is {problem}; use {low} to {high}", field=field)
    retry = replace(current, **value)
    if retry.delay > retry.max:
        text = f"retry.delay: {retry.delay:.15g} s is above retry.max, {retry.max:.15g} s; lower it, or raise retry.max"
        raise InvalidRequest(text, field="retry.delay")
    return retry


def texts(field: str, value: object, current: Mapping[str, str]) -> dict[str, str]:
    """Texts by name, with changes: a name that is not given keeps its text, one with null loses it."""
    if not isinstance(value, Mapping):
        raise InvalidRequest(f"{field}: {show(value)}; use an object of texts by name", field=field)
    for name, text in value.items():
        if not isinstance(name, str) or not name or not isinstance(text, str | None):
            known = f"{field}: {show(name)}: {show(text)} is invalid"
            raise InvalidRequest(f"{known}; use a name of at least one character, and a text or null", field=field)
        if field == "tags" and (len(name) > TAG_NAME or len(text or "") > TAG_VALUE):
            limits = f"a name has at most {TAG_NAME} characters, a value {TAG_VALUE}"
            raise TooLarge(f"tags: {show(name)} is too long; {limits}", field=field)
    kept = {name: text for name, text in {**current, **value}.items() if text is not None}
    if field == "tags" and len(kept) > MOST_TAGS:
        raise TooLarge(f"tags: {len(kept)} of them; at most {MOST_TAGS}", field=field)
    try:
        size = sum(len(name.encode()) + len(text.encode()) for name, text in kept.items())
    except UnicodeEncodeError:
        raise InvalidRequest(f"{field}: is not valid Unicode", field=field) from None
    if size > SQS_BYTES:
        raise TooLarge(f"{field}: {size} bytes in UTF-8; at most {SQS_BYTES}", field=field)
    return kept
