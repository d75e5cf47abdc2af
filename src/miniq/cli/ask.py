"""One call of the HTTP API that the client has no method for, because programs do not need it."""

from __future__ import annotations

import ssl
import urllib.error
import urllib.request
from typing import Any, TypeVar

import msgspec

from miniq.api import codec, shapes
from miniq.cli.flags import Target
from miniq.errors import MiniQError, StoreUnavailable

T = TypeVar("T")
TIMEOUT = 30.0


def ask(at: Target, method: str, path: str, reply: type[T], body: Any = None, timeout: float = TIMEOUT) -> T:
    """The answer, or the broker's error raised again."""
    request = urllib.request.Request(  # noqa: S310  the scheme was checked
        at.url.rstrip("/") + path,
        None if body is None else codec.encode_json(body),
        {"content-type": "application/json", "accept": "application/json"},
        method=method,
    )
    if at.api_key is not None:
        request.add_header("authorization", f"Bearer {at.api_key}")
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
    if at.url.startswith("https:"):
        handlers.append(urllib.request.HTTPSHandler(context=ssl.create_default_context()))
    try:
        with urllib.request.build_opener(*handlers).open(request, timeout=timeout) as answer:
            raw = answer.read()
    except urllib.error.HTTPError as error:
        with error:
            raise _problem(error.code, error.read()) from None
    except (urllib.error.URLError, OSError) as error:
        reason = getattr(error, "reason", None) or error
        raise StoreUnavailable(f"cannot reach the broker at {at.url}: {reason}") from None
    return msgspec.json.decode(raw or b"null", type=reply)


def _problem(status: int, raw: bytes) -> MiniQError:
    try:
        return codec.raised(msgspec.json.decode(raw, type=shapes.Problem))
    except msgspec.DecodeError:
        return MiniQError(f"the broker answered {status}; is it a MiniQ broker?")
