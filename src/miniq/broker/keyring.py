"""Keys: who may do what on which queues.

An API key is a secret that is shown once; what is kept is its hash. A CURVE key proves itself while a ZeroMQ
connection is made; what is kept is its public half. A key allows a list of `VERB:PATTERN`, where the verb is one of
`VERBS` or `*` and the pattern is a queue name with `*` for any characters. While there are no keys, everybody
may do everything, and the server listens on loopback only.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Sequence
from fnmatch import fnmatchcase

import msgspec
from msgspec import Struct

from miniq.broker import rules
from miniq.errors import Forbidden, InvalidRequest, NotFound, Unauthorized
from miniq.options import Limits
from miniq.store.contract import Store

VERBS = ("send", "receive", "read", "manage", "admin")
"""send; receive, ack, release and extend; look at queues, messages and history; configure, edit, remove, purge,
redrive and delete; keys and backups."""

KIND = "key"
PAIR_KIND = "curve"
_CACHE = 1024
_CURVE = re.compile(r"[0-9a-zA-Z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}")


class ApiKey(Struct, frozen=True, omit_defaults=True):
    id: str
    name: str
    allow: list[str]
    created_at: int
    hash: str
    public: str | None = None
    """Of a CURVE key, which has no hash."""


class Proven(Struct, frozen=True):
    """A caller whose connection has proven to hold a CURVE key; it stands where others show a secret."""

    id: str


Secret = str | Proven
"""What callers show for themselves."""


class CurvePair(Struct, frozen=True):
    """The broker's own CURVE key."""

    public: str
    secret: str


class KeyRing:
    """All keys of a broker."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._keys: dict[str, ApiKey] = {}
        self.open = True
        """Whether everybody may do everything."""
        self._known: dict[Secret, ApiKey] = {}
        """Secrets that were checked before, so that a call does not hash."""
        self._allowed: dict[tuple[str, str, str], bool] = {}

    async def load(self) -> None:
        """Read all keys, and forget what was concluded from those before."""
        found = [msgspec.json.decode(value, type=ApiKey) for value in (await self._store.records(KIND)).values()]
        self._keys = {key.id: key for key in found}
        self.open = not found
        self._known.clear()
        self._allowed.clear()

    def list(self) -> list[ApiKey]:
        return sorted(self._keys.values(), key=lambda key: key.created_at)

    async def create(self, name: str, allow: Sequence[str], now: int) -> tuple[ApiKey, str]:
        """A new API key and its secret, which is not kept."""
        self._check(name, allow)
        id = secrets.token_hex(6)
        secret = f"mq_{id}_{secrets.token_urlsafe(24)}"
        key = ApiKey(id, name, list(allow), now, _hash(secret))
        await self._add(key)
        return key, secret

    async def admit(self, name: str, allow: Sequence[str], public: str, now: int) -> ApiKey:
        """List the public half of a CURVE key, in the form of its 40 characters."""
        self._check(name, allow)
        if _CURVE.fullmatch(public) is None:
            raise InvalidRequest(
                f"public: {public[:80]!r} is not the public half of a CURVE key, which has 40 characters (Z85)",
                field="public",
            )
        if self.proven(public) is not None:
            raise InvalidRequest(f"public: {public} is listed already; revoke it first", field="public")
        key = ApiKey(secrets.token_hex(6), name, list(allow), now, "", public)
        await self._add(key)
        return key

    def proven(self, public: str) -> Proven | None:
        """Who a connection is that holds a CURVE key, None if the key is not listed."""
        for key in self._keys.values():
            if key.public == public:
                return Proven(key.id)
        return None

    async def own_pair(self) -> CurvePair:
        """The broker's own CURVE key, made the first time and kept in the store."""
        found = (await self._store.records(PAIR_KIND)).get("server")
        if found is not None:
            return msgspec.json.decode(found, type=CurvePair)
        import zmq

        pair = CurvePair(*(half.decode() for half in zmq.curve_keypair()))
        await self._store.save_record(PAIR_KIND, "server", msgspec.json.encode(pair))
        return pair

    async def revoke(self, id: str) -> None:
        """A key is no longer good from now on."""
        if id not in self._keys and self._store.shared:
            await self.load()
        if id not in self._keys:
            raise NotFound(f"id: there is no key {id!r}", field="id")
        await self._store.save_record(KIND, id, None)
        self._keys.pop(id, None)
        self.open = not self._keys
        self._known = {secret: key for secret, key in self._known.items() if key.id != id}
        self._allowed.clear()

    def identify(self, secret: Secret | None) -> ApiKey:
        """The key that a caller shows; raise if it shows none, or none that is known."""
        if secret is None:
            raise Unauthorized(
                "an API key is needed: `Authorization: Bearer KEY` over HTTP, `api_key` in a ZeroMQ request"
            )
        return self._known.get(secret) or self._identify(secret)

    def check(self, secret: Secret | None, verb: str, queue: str | None) -> None:
        """Raise unless the holder of `secret` may do `verb` on a queue, or on the broker as a whole."""
        if self.open:
            return
        key = self.identify(secret)
        asked = (key.id, verb, queue or "")
        allowed = self._allowed.get(asked)
        if allowed is None:
            allowed = any(_covers(scope, verb, queue) for scope in key.allow)
            if len(self._allowed) >= 16 * _CACHE:
                self._allowed.clear()
            if len(asked[2]) <= rules.NAME_LENGTH:  # what is longer is no queue's name, and would fill the memory
                self._allowed[asked] = allowed
        if not allowed:
            where = "the broker" if queue is None else f"queue {queue[: rules.NAME_LENGTH]!r}"
            raise Forbidden(f"key {key.name!r} does not allow {verb} on {where}")

    def may(self, secret: Secret | None, verb: str, queue: str | None) -> bool:
        """Whether `check` would pass."""
        try:
            self.check(secret, verb, queue)
        except (Unauthorized, Forbidden):
            return False
        return True

    def _check(self, name: str, allow: Sequence[str]) -> None:
        rules.check_text(name, "name", Limits())
        if not allow:
            raise InvalidRequest("allow: empty; give at least one VERB:PATTERN such as send:orders.*", field="allow")
        for scope in allow:
            verb, colon, pattern = scope.partition(":") if isinstance(scope, str) else ("", "", "")
            if verb not in (*VERBS, "*") or (colon and not pattern) or len(pattern) > rules.NAME_LENGTH:
                raise InvalidRequest(
                    f"allow: {scope!r:.80} is not VERB:PATTERN; verbs are {', '.join(VERBS)} and *", field="allow"
                )

    async def _add(self, key: ApiKey) -> None:
        await self._store.save_record(KIND, key.id, msgspec.json.encode(key))
        self._keys[key.id] = key
        self.open = False

    def _identify(self, secret: Secret) -> ApiKey:
        if isinstance(secret, Proven):
            key = self._keys.get(secret.id)
            if key is None:
                raise Unauthorized("the CURVE key of this connection was revoked")
        else:
            parts = secret.split("_", 2)
            key = self._keys.get(parts[1]) if len(parts) == 3 else None
            if key is None or not hmac.compare_digest(key.hash, _hash(secret)):
                raise Unauthorized("this API key is not known, or was revoked")
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
