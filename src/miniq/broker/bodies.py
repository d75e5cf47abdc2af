"""Which bodies are valid: their size, their content type and, for JSON, how deeply it is nested.

That bodies are JSON if their content type says so is checked where they come from: by the wires, and by the client.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from miniq.errors import InvalidRequest, TooLarge, show
from miniq.json_values import SHORT, check_depth, check_finite, is_deep, is_json, too_deep
from miniq.message import JSON
from miniq.options import Limits
from miniq.packed import sizes_of

_CONTENT_TYPE = re.compile(r"[!-~]+/[!-~][ -~]*")


def check_body(body: object, content_type: object, limits: Limits) -> None:
    """Raise unless body and content type are valid."""
    if not isinstance(body, bytes):
        raise InvalidRequest(f"body: {show(body)} is not bytes", field="body")
    if len(body) > limits.body_bytes:
        raise TooLarge(f"body: {len(body)} bytes; at most {limits.body_bytes}", field="body")
    if content_type == JSON:
        check_depth(body, "body")
        return
    if not isinstance(content_type, str) or _CONTENT_TYPE.fullmatch(content_type) is None:
        text = f"content_type: {show(content_type)} is not a media type such as {JSON}"
        raise InvalidRequest(text, field="content_type")
    if len(content_type) > limits.name_bytes:
        text = f"content_type: {len(content_type)} characters; at most {limits.name_bytes}"
        raise TooLarge(text, field="content_type")
    if is_json(content_type):
        check_depth(body, "body")


def encode_body(body: dict[str, Any], limits: Limits) -> bytes:
    """A JSON object as bytes; raises unless it is a valid body."""
    try:
        text = msgspec.json.encode(body)
    except RecursionError:
        raise too_deep("body") from None
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidRequest(f"body: not a JSON value: {error}", field="body") from None
    check_body(text, JSON, limits)
    if b"null" in text:  # NaN and infinities are encoded so
        check_finite(body, "body")
    return text


def are_valid(bodies: Sequence[bytes], content_type: str, limits: Limits) -> bool:
    """A fast form of `check_body` for many bodies, of a content type that is valid."""
    longest = max(sizes_of(bodies))
    if longest <= SHORT:
        return longest <= limits.body_bytes
    return longest <= limits.body_bytes and not (is_json(content_type) and any(map(is_deep, bodies)))
