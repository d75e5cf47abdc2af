"""What a JSON value must be beyond what the standard says: nested at most `DEPTH` levels deep, and without NaN and
infinities, which JSON does not have, so that encoders write null in their place.

Parsers limit nesting themselves, but each differently: without a limit of our own, a consumer might not be able to read
the reply that contains a message which a broker accepted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import accumulate
from typing import Any

from miniq.errors import InvalidRequest
from miniq.message import JSON

DEPTH = 512
"""How many levels arrays and objects may be nested. Python 3.11 parses under 1000, less the depth of its call stack."""
SHORT = 2 * DEPTH
"""A text of this length is not nested more deeply: each level takes two bytes."""
TOO_DEEP = f"nested more than {DEPTH} levels deep"
_OTHERS = bytes(set(range(256)) - set(b'[]{}"'))
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
"""Each bracket as a signed byte: the change of the level."""


def is_json(content_type: str) -> bool:
    """Whether a content type is JSON."""
    if content_type == JSON:
        return True
    kind = content_type.partition(";")[0].strip().lower()
    return kind == JSON or kind.endswith("+json")


def is_deep(text: bytes) -> bool:
    """Whether JSON is nested more than `DEPTH` levels deep. Most texts have fewer brackets than that."""
    size = len(text)
    # Where there are few, removing them is several times as fast as `count`.
    if size <= SHORT or 2 * size - len(text.replace(b"{", b"")) - len(text.replace(b"[", b"")) <= DEPTH:
        return False
    if b"\\" in text:  # quotation marks that are part of a string
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    text = text.translate(None, _OTHERS).replace(b'""', b"")
    if b'"' in text:  # strings with brackets
        text = b"".join(text.split(b'"')[::2])
    return max(accumulate(memoryview(text.translate(_STEPS)).cast("b")), default=0) > DEPTH


def check_depth(text: bytes, field: str) -> None:
    """Refuse JSON that is nested too deeply."""
    if len(text) > SHORT and is_deep(text):
        raise too_deep(field)


def too_deep(field: str) -> InvalidRequest:
    """The error for a value that is nested too deeply."""
    return InvalidRequest(f"{field}: {TOO_DEEP}", field=field)


def check_finite(value: Any, field: str, to_builtin: Callable[[Any], Any] | None = None) -> None:
    """Refuse NaN and infinities anywhere in a value. `to_builtin` makes builtin values of others."""
    try:
        path = _non_finite(value, to_builtin)
    except RecursionError:
        raise too_deep(field) from None
    if path is not None:
        verb = "use" if field.endswith("result") else "send"
        field += path
        raise InvalidRequest(f"{field}: NaN and infinity are not JSON values; {verb} null or text", field=field)


def _non_finite(value: Any, to_builtin: Callable[[Any], Any] | None) -> str | None:
    """The path of the first NaN or infinity in a value, such as `.items[2].price`; None if there is none."""
    if value is None or isinstance(value, str | int):
        return None
    if isinstance(value, float):
        return None if math.isfinite(value) else ""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            if (path := _non_finite(inner, to_builtin)) is not None:
                return f".{name}{path}"
    elif isinstance(value, list | tuple | set | frozenset):
        for index, inner in enumerate(value):
            if (path := _non_finite(inner, to_builtin)) is not None:
                return f"[{index}]{path}"
    elif to_builtin is not None and isinstance(builtin := to_builtin(value), dict | list | float):
        return _non_finite(builtin, to_builtin)
    return None
