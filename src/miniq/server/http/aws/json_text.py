"""JSON within parameters: policies and task handles, whose nesting is bounded."""

from __future__ import annotations

import json
from typing import Any

DEPTH = 32
"""How deep values may be nested."""


def read_json(text: str | bytes) -> Any:
    """A value from its JSON; raises ValueError if it is none, or is nested too deep to be handled safely."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("nested too deep") from None
    level = [value]
    for _ in range(DEPTH):
        level = [inner for node in level for inner in _inner(node)]
        if not level:
            return value
    raise ValueError("nested too deep")


def _inner(node: Any) -> list[Any]:
    if isinstance(node, dict):
        return list(node.values())
    return node if isinstance(node, list) else []
