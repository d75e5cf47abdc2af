"""API keys: who may do what on which queues.

A key is shown once; what is kept is its hash. It allows a list of `VERB:PATTERN`, where the verb is one of
`VERBS` or `*` and the pattern is a queue name with `*` for any characters. While there are no keys, everybody
may do everything, and the server listens on loopback only.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Sequence
from fnmatch import fnmatchcase

import msgspec
from msgspec import Struct

from miniq.broker import rules
from miniq.errors import Forbidden, InvalidRequest, NotFound, Unauthorized
from miniq.options import Limits
from miniq.store.base import Store

VERBS = ("send", "receive", "read", "manage", "admin")
"""send; receive, ack, release and extend; look at queues, messages and history; configure, edit, remove, purge,
redrive and delete; keys and backups."""

KIND = "key"
_CACHE = 1024


class ApiKey(Struct, frozen=True):
    id: str
    name: str
    allow: list[str]
    created_at: int
    hash: str


class KeyRing:
    """All keys of a broker."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._keys: dict[str, ApiKey] = {}
        self._known: dict[str, ApiKey] = {}
        """Secrets that were checked before, so that a call does not hash."""
        self._allowed: dict[tuple[str, str, str], bool] = {}

    async def load(self) -> None:
        for value in (await self._store.records(KIND)).values():
            key = msgspec.json.decode(value, type=ApiKey)
            self._keys[key.id] = key

    @property
    def open(self) -> bool:
        """Whether everybody may do everything."""
        return not self._keys

    def list(self) -> list[ApiKey]:
        return sorted(self._keys.values(), key=lambda key: key.created_at)

    async def create(self, name: str, allow: Sequence[str], now: int) -> tuple[ApiKey, str]:
        """A new key and its secret, which is not kept."""
        rules.check_text(name, "name", Limits())
        if not allow:
            raise InvalidRequest("allow: empty; give at least one VERB:PATTERN such as send:orders.*", field="allow")
        for scope in allow:
            verb, colon, pattern = scope.partition(":") if isinstance(scope, str) else ("", "", "")
            if verb not in (*VERBS, "*") or (colon and not pattern) or len(pattern) > 128:
                raise InvalidRequest(
                    f"allow: {scope!r} is not VERB:PATTERN; verbs are {', '.join(VERBS)} and *", field="allow"
                )
        id = secrets.token_hex(6)
        secret = f"mq_{id}_{secrets.token_urlsafe(24)}"
        key = ApiKey(id, name, list(allow), now, _hash(secret))
        await self._store.save_record(KIND, id, msgspec.json.encode(key))
        self._keys[id] = key
        return key, secret

    async def revoke(self, id: str) -> None:
        """A key is no longer good from now on."""
        if id not in self._keys:
            raise NotFound(f"id: there is no key {id!r}", field="id")
        await self._store.save_record(KIND, id, None)
        del self._keys[id]
        self._known = {secret: key for secret, key in self._known.items() if key.id != id}
        self._allowed.clear()

    def check(self, secret: str | None, verb: str, queue: str | None) -> None:
        """Raise unless the holder of `secret` may do `verb` on a queue, or on the broker as a whole."""
        if not self._keys:
            return
        if secret is None:
            raise Unauthorized("Authorization: an API key is needed; send `Authorization: Bearer KEY`")
        key = self._known.get(secret) or self._identify(secret)
        asked = (key.id, verb, queue or "")
        allowed = self._allowed.get(asked)
        if allowed is None:
            allowed = any(_covers(scope, verb, queue) for scope in key.allow)
            if len(self._allowed) >= 16 * _CACHE:
                self._allowed.clear()
            self._allowed[asked] = allowed
        if not allowed:
            where = "the broker" if queue is None else f"queue {queue!r}"
            raise Forbidden(f"Authorization: key {key.name!r} does not allow {verb} on {where}")

    def may(self, secret: str | None, verb: str, queue: str | None) -> bool:
        """Whether `check` would pass."""
        try:
            self.check(secret, verb, queue)
        except (Unauthorized, Forbidden):
            return False
        return True

    def _identify(self, secret: str) -> ApiKey:
        parts = secret.split("_", 2)
        key = self._keys.get(parts[1]) if len(parts) == 3 else None
        if key is None or not hmac.compare_digest(key.hash, _hash(secret)):
            raise Unauthorized("Authorization: this API key is not known, or was revoked")
        if len(self._known) >= _CACHE:
            self._known.clear()
        self._known[secret] = key
        return key


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()


def _covers(scope: str, verb: str, queue: str | None) -> bool:
    allowed, _, pattern = scope.partition(":")
    if allowed not in (verb, "*"):
        return False
    if queue is None:
        return pattern in ("", "*")
    return not pattern or fnmatchcase(queue, pattern)
