"""What both lanes do for every HTTP request and reply: request ids, the access log, and protection from other sites.

A page of another site must not use a broker that its visitor's browser can reach:

- A call that changes something is refused if its `Origin` is neither the `Host` it was sent to nor in the option
  `allowed_hosts`, ports included, or if the browser marks it as coming from another site (`Sec-Fetch-Site`). Programs
  send neither header.
- While no keys exist, a request whose `Host` could be any site's name is refused: such a name can be made to resolve to
  127.0.0.1 (DNS rebinding), and its pages could then read everything. Addresses, `localhost`, names without a dot, this
  machine's own name and those in the option `allowed_hosts` are accepted. Once keys exist, a page has none.
"""

from __future__ import annotations

import itertools
import logging
import re
import secrets
import socket
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from time import perf_counter

from msgspec import Struct
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from miniq.broker.keyring import KeyRing
from miniq.errors import BadRequest, CrossOrigin, MiniQError, NoRoute, WrongMedia
from miniq.logs import REQUEST

log = logging.getLogger("miniq.http")

_PORT = re.compile(r":\d+$")
_ADDRESS = re.compile(r"\[[0-9a-f:.]+\]|\d+\.\d+\.\d+\.\d+")
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_RECEIVING_PATHS = ("/messages", "/read_messages")
"""Short routes that receive messages with a GET."""

_ONCE = (b"host", b"origin", b"authorization")
"""Headers that decide who may do what: a request that repeats one could be read in two ways."""
_DEFAULT_PORTS = {"http": ":80", "https": ":443"}
CACHED, CACHED_BYTES = 1024, 256
"""How many combinations of `Host`, `Origin` and `Sec-Fetch-Site` are remembered, and the size of the longest."""

ID = secrets.token_hex(4).encode() + b"-%x"
"""Format of a request id: a prefix for this process, and a number."""
NOSNIFF = (b"x-content-type-options", b"nosniff")
next_number = itertools.count(1).__next__


def given_id(header: str | None) -> bytes | None:
    """The caller's id for its request (X-Request-ID), None if it is missing or invalid."""
    return header.encode() if header is not None and _REQUEST_ID.fullmatch(header) else None


class Violation(Struct, frozen=True):
    """Why a request is refused for its headers."""

    text: str
    field: str
    kind: type[MiniQError] = CrossOrigin
    without_keys: bool = False
    """Whether it matters only while no keys exist."""

    def check(self, keys: KeyRing) -> None:
        if keys.open or not self.without_keys:
            raise self.kind(self.text, field=self.field)


class Guard:
    """Tells requests of the console and of programs from those of other sites' pages."""

    def __init__(self, keys: KeyRing, allowed_hosts: str) -> None:
        self.keys = keys
        names = [name.strip().lower() for name in allowed_hosts.split(",")]
        self._own_origins = {*filter(None, names), socket.gethostname().lower()}
        self._own_names = {_PORT.sub("", name) for name in self._own_origins}
        self._remembered = lru_cache(CACHED)(self._violation)

    def violation(
        self, fields: Mapping[str, str], headers: Sequence[tuple[bytes, bytes]], is_safe: bool
    ) -> Violation | None:
        """What is wrong with a request that has these headers; `fields` are the same by name."""
        if len(fields) < len(headers):
            names = [name for name, _ in headers]
            for name in _ONCE:
                if names.count(name) > 1:
                    field = name.decode()
                    return Violation(f"{field}: given {names.count(name)} times; send it once", field, BadRequest)
        encoding = fields.get("content-encoding", "")
        if encoding.lower() not in ("", "identity"):
            text = f"content-encoding: {encoding[:80]!r} is not supported; send the body as it is"
            return Violation(text, "content-encoding", WrongMedia)
        host, origin, fetch_site = fields.get("host", ""), fields.get("origin"), fields.get("sec-fetch-site")
        is_short = len(host) + len(origin or "") + len(fetch_site or "") <= CACHED_BYTES
        return (self._remembered if is_short else self._violation)(host, origin, fetch_site, is_safe)

    def _violation(self, host: str, origin: str | None, fetch_site: str | None, is_safe: bool) -> Violation | None:
        host = host.lower()
        if not is_safe:
            if origin is not None:
                if not self._is_same(origin.lower(), host):
                    return Violation(f"origin: {origin[:80]!r} is not this broker ({host[:80]})", "origin")
            elif fetch_site in ("cross-site", "same-site"):
                return Violation("sec-fetch-site: pages of other sites may not make this call", "sec-fetch-site")
        if self._is_own(host):
            return None
        return Violation(
            f"host: {host[:80]!r} could be any site's name, and no API keys exist; use 127.0.0.1 or localhost, "
            "or add the name to allowed_hosts",
            "host",
            without_keys=True,
        )

    def _is_same(self, origin: str, host: str) -> bool:
        """Whether a page of an origin belongs to this broker. Browsers leave out the default port of a scheme."""
        scheme, _, place = origin.partition("://")
        default = _DEFAULT_PORTS.get(scheme)
        return default is not None and (place == host.removesuffix(default) or place in self._own_origins)

    def _is_own(self, host: str) -> bool:
        name = _PORT.sub("", host).rstrip(".")
        return (
            "." not in name
            or name.endswith(".localhost")
            or _ADDRESS.fullmatch(name) is not None
            or name in self._own_names
        )


class GuardedApp:
    """An ASGI application behind a guard, on a `Connection`, which adds its headers by name (`fields`) to the scope."""

    def __init__(self, app: ASGIApp, guard: Guard, refuse: Callable[[MiniQError], Response]) -> None:
        self._app = app
        self._guard = guard
        self._refuse = refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        began = perf_counter()
        fields = scope["fields"]
        id = given_id(fields.get("x-request-id")) or ID % next_number()
        REQUEST.set(id.decode())
        method, path = scope["method"], scope["path"]

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] += [(b"x-request-id", id), NOSNIFF]
                log_answer(method, path, message["status"], began, id)
            await send(message)

        is_safe = method in _SAFE_METHODS and not path.startswith(_RECEIVING_PATHS) and not _has_action(scope)
        violation = self._guard.violation(fields, scope["headers"], is_safe)
        try:
            if path.startswith("/v1/") and b"%2f" in scope.get("raw_path", b"").lower():
                raise NoRoute(f"not found: {path[:200]}; names cannot contain a slash; see /docs")
            if violation is not None:
                violation.check(self._guard.keys)
        except MiniQError as error:
            await self._refuse(error)(scope, receive, answer)
            return
        await self._app(scope, receive, answer)


def _has_action(scope: Scope) -> bool:
    """Whether the query names an action of SQS, which may change something whatever the method."""
    return b"Action=" in scope["query_string"]


def log_answer(method: str, path: str, status: int, began: float, id: bytes) -> None:
    """Log a reply at level debug. The query is left out: it may contain a receipt."""
    if log.isEnabledFor(logging.DEBUG):
        ms = round((perf_counter() - began) * 1000, 2)
        about = {"request": id.decode(), "method": method, "path": path[:300], "status": status, "ms": ms}
        log.debug("answered", extra=about)
