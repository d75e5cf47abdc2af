"""What every HTTP request passes and every answer has, in both lanes: an id, a line in the log, and the question
whether a browser asks for a page that is not ours.

A page of another site must not use a broker that its visitor can reach:

- A call that changes something is refused if its `Origin` is not the `Host` it was sent to, or if the browser says that
  it comes from elsewhere (`Sec-Fetch-Site`). Programs send neither.
- While there are no keys, a request for a `Host` that may be anybody's name is refused: such a name can be made to lead
  to 127.0.0.1 (DNS rebinding), and its pages could then read everything. Addresses, `localhost`, names without a dot,
  this machine's own name and those in the option `allowed_hosts` are fine. With keys, who has none gets nothing.
"""

from __future__ import annotations

import itertools
import logging
import re
import secrets
import socket
from collections.abc import Callable, Mapping
from time import perf_counter
from urllib.parse import urlsplit

from msgspec import Struct
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from miniq.broker.keyring import KeyRing
from miniq.errors import CrossOrigin, MiniQError, NoRoute
from miniq.logs import REQUEST

log = logging.getLogger("miniq.http")

_ADDRESS = re.compile(r"\[[0-9a-f:.]+\]|\d+\.\d+\.\d+\.\d+")
_GIVEN = re.compile(r"[A-Za-z0-9._-]{1,64}")
_READING = frozenset({"GET", "HEAD", "OPTIONS"})
_TAKING = ("/messages", "/read_messages")
"""Short routes that hand out messages on a GET."""

ID = secrets.token_hex(4).encode() + b"-%x"
"""The id of a request: one of this process, and its number."""
number = itertools.count(1).__next__


def new_id() -> bytes:
    return ID % number()


def given_id(said: str | None) -> bytes | None:
    """The id that a caller gave to its request, None if it gave none or something else."""
    return said.encode() if said is not None and _GIVEN.fullmatch(said) else None


class Doubt(Struct, frozen=True):
    """Why a request may be one that a browser was tricked into."""

    text: str
    field: str
    only_open: bool
    """Whether it matters only while there are no keys."""

    def check(self, keys: KeyRing) -> None:
        if keys.open or not self.only_open:
            raise CrossOrigin(self.text, field=self.field)


class Guard:
    """Tells requests of our own pages and of programs from those of other sites."""

    def __init__(self, keys: KeyRing, allowed_hosts: str) -> None:
        self.keys = keys
        names = [name.strip().lower() for name in allowed_hosts.split(",")]
        self._known = {*filter(None, names), socket.gethostname().lower()}
        self._judged: dict[tuple[str | None, ...], Doubt | None] = {}

    def doubt(self, method: str, path: str, headers: Mapping[str, str]) -> Doubt | None:
        """What is doubtful about a request, None if nothing is."""
        host = headers.get("host", "").lower()
        if method not in _READING or path.startswith(_TAKING):
            origin = headers.get("origin")
            if origin is not None:
                if not self._same(origin, host):
                    return Doubt(f"origin: {origin[:80]!r} is not this broker ({host[:80]})", "origin", False)
            elif headers.get("sec-fetch-site") in ("cross-site", "same-site"):
                return Doubt("sec-fetch-site: a page of another site may not ask for this", "sec-fetch-site", False)
        if not self._ours(host):
            return Doubt(
                f"host: {host[:80]!r} may be anybody's name, and there are no API keys; use 127.0.0.1 or localhost, "
                "or add the name to allowed_hosts",
                "host",
                True,
            )
        return None

    def usual(self, headers: Mapping[str, str]) -> Doubt | None:
        """The same for a POST; those of one client are alike, and are judged once."""
        get = headers.get
        asked = (get("host"), get("origin"), get("sec-fetch-site"))
        try:
            return self._judged[asked]
        except KeyError:
            if len(self._judged) >= 1024:
                self._judged.clear()
            found = self._judged[asked] = self.doubt("POST", "", headers)
            return found

    def _same(self, origin: str, host: str) -> bool:
        try:
            found = urlsplit(origin.lower())
        except ValueError:
            return False
        return bool(found.netloc) and (found.netloc == host or found.hostname in self._known)

    def _ours(self, host: str) -> bool:
        name = re.sub(r":\d+$", "", host).rstrip(".")
        return (
            "." not in name
            or name.endswith(".localhost")
            or _ADDRESS.fullmatch(name) is not None
            or name in self._known
        )


class Edge:
    """The ordinary lane's edge, around its ASGI application."""

    def __init__(self, app: ASGIApp, guard: Guard, refuse: Callable[[MiniQError], Response]) -> None:
        self._app = app
        self._guard = guard
        self._refuse = refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        began = perf_counter()
        said = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        id = given_id(said.get("x-request-id")) or new_id()
        REQUEST.set(id.decode())
        method, path = scope["method"], scope["path"]

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] += [(b"x-request-id", id), (b"x-content-type-options", b"nosniff")]
                log_answer(method, path, message["status"], began, id)
            await send(message)

        doubt = self._guard.doubt(method, path, said)
        try:
            if path.startswith("/v1/") and b"%2f" in scope.get("raw_path", b"").lower():
                # Decoded it leads to another route, which nobody asked for.
                raise NoRoute(f"there is nothing at {path[:200]}: no name has a slash in it; see /docs")
            if doubt is not None:
                doubt.check(self._guard.keys)
        except (NoRoute, CrossOrigin) as error:
            await self._refuse(error)(scope, receive, answer)
            return
        await self._app(scope, receive, answer)


def log_answer(method: str, path: str, status: int, began: float, id: bytes) -> None:
    """A line for each answer, for those who want that many. The query is left out: it may hold a receipt."""
    if log.isEnabledFor(logging.DEBUG):
        ms = round((perf_counter() - began) * 1000, 2)
        about = {"request": id.decode(), "method": method, "path": path[:300], "status": status, "ms": ms}
        log.debug("answered", extra=about)
