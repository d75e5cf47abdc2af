"""API keys and CURVE keys, and what each allows on which queues.

An API key is a secret that is shown once; only its hash is stored. A CURVE key authenticates a ZeroMQ connection
during its handshake; only its public half is stored. A key has a list of `VERB:PATTERN` scopes, where the verb is one
of `VERBS` or `*` and the pattern is the name of a queue or topic with `*` for any characters (patterns of older stores
may also have the other wildcards of `fnmatch`). Until the first key is created, every call is allowed, and the server
listens on loopback only. From then on calls need a key, also after the last one was revoked: a new one is then created
on the store, without the broker (`miniq keys create --store`).
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Callable, Collection, Hashable, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from typing import Literal

import msgspec
from msgspec import Struct

from miniq.broker import rules
from miniq.errors import Forbidden, InvalidRequest, NotFound, TooManyQueues, TooManyTopics, Unauthorized, show
from miniq.message import NAME_LENGTH
from miniq.options import Limits
from miniq.store.contract import Store

VERBS = ("send", "receive", "publish", "read", "manage", "admin")
"""`receive` includes ack, release and extend; `publish` is for topics; `read` is queues, topics, messages and history;
`manage` is configure, edit, remove, purge, redrive, delete, subscribe and unsubscribe; `admin` is keys and backups."""

ACCESS_KEY = "MINIQKEY"
"""How access key ids begin; the id of the key follows."""
KIND = "key"
PAIR_KIND = "curve"
CLOSED_KIND = "closed"
"""The kind of the record that there have been keys."""
FIRST_KEY = "this is the first key: from now on, a server on this store refuses calls without a key"
LOCKED_OUT = (
    "no key allows admin on all queues: keys can be created and revoked only on the store, by `miniq keys` with --store"
)
_NO_KEYS = (
    "; all keys of this broker were revoked: stop it if its store is a folder, and create a key with "
    "`miniq keys create NAME --allow '*' --store STORE`"
)
_CACHE = 1024
_MOST_SCOPES = 100
_PATTERN = re.compile(r"[A-Za-z0-9._*-]+")
_CURVE = re.compile(r"[0-9a-zA-Z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}")


class ApiKey(Struct, frozen=True, omit_defaults=True):
    id: str
    name: str
    allow: list[str]
    created_at: int
    hash: str
    public: str | None = None
    """The public half of a CURVE key, whose `hash` is empty."""
    max_queues: int | None = None
    """The key creates no queue while as many match its scopes."""
    aws: str | None = None
    """The secret of a key that signs requests of Amazon SQS, whose `hash` is empty. Verifying a signature needs the
    secret itself."""

    @property
    def access_key(self) -> str | None:
        """The access key id of a key that signs."""
        return None if self.aws is None else ACCESS_KEY + self.id.upper()


class CurveIdentity(Struct, frozen=True):
    """The id of the CURVE key that a connection authenticated with; takes the place of a secret."""

    id: str


class AwsIdentity(Struct, frozen=True):
    """The access key id that a request was signed with; takes the place of a secret."""

    access_key: str


Secret = str | CurveIdentity | AwsIdentity
"""The credential of a caller."""


class CurvePair(Struct, frozen=True):
    """The broker's own CURVE key pair."""

    public: str
    secret: str


class KeyRing:
    """All keys of a broker."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._keys: dict[str, ApiKey] = {}
        self.open = True
        """Whether there never were any keys, so that every call is allowed."""
        self._closed = False
        """Whether the store has the record that there have been keys."""
        self.on_loss: Callable[[], None] = lambda: None
        """Called when some callers have lost their rights. The broker sets it."""
        self._known: dict[Secret, ApiKey] = {}
        """Cache of verified credentials, so that not every call has to hash."""
        self._allowed: dict[tuple[str, str, str], bool] = {}
        self._counted: dict[tuple[str, str], tuple[tuple[Hashable, int], int]] = {}
        """By key: how many queues match its scopes, and of which state of the catalog."""

    async def load(self) -> None:
        """Read all keys, and clear the caches."""
        keys = [msgspec.json.decode(value, type=ApiKey) for value in (await self._store.records(KIND)).values()]
        self._closed = bool(await self._store.records(CLOSED_KIND))
        had, was_open = self._keys.keys(), self.open
        self._keys = {key.id: key for key in keys}
        self.open = not keys and not self._closed
        self._known.clear()
        self._allowed.clear()
        self._counted.clear()
        if had - self._keys.keys() or (was_open and not self.open):
            self.on_loss()

    def list(self) -> list[ApiKey]:
        return sorted(self._keys.values(), key=lambda key: key.created_at)

    async def create(
        self, name: str, allow: Sequence[str], now: int, max_queues: int | None = None
    ) -> tuple[ApiKey, str]:
        """Create an API key; return it with its secret, which is not stored."""
        self._check(name, allow, max_queues)
        id = secrets.token_hex(6)
        secret = f"mq_{id}_{secrets.token_urlsafe(24)}"
        key = ApiKey(id, name, list(allow), now, _hash(secret), None, max_queues)
        await self._add(key)
        return key, secret

    async def create_aws(self, name: str, allow: Sequence[str], now: int, max_queues: int | None = None) -> ApiKey:
        """Create a key that signs requests of Amazon SQS."""
        self._check(name, allow, max_queues)
        id, secret = secrets.token_hex(6), secrets.token_urlsafe(30)
        key = ApiKey(id, name, list(allow), now, "", None, max_queues, secret)
        await self._add(key)
        return key

    def aws_secret(self, access_key: str) -> str | None:
        """The secret that belongs to an access key id; None if there is none."""
        key = self._keys.get(access_key.removeprefix(ACCESS_KEY).lower())
        return None if key is None or key.access_key != access_key else key.aws

    async def register(
        self, name: str, allow: Sequence[str], public: str, now: int, max_queues: int | None = None
    ) -> ApiKey:
        """Add a CURVE key by its public half (40 characters, Z85)."""
        self._check(name, allow, max_queues)
        if _CURVE.fullmatch(public) is None:
            raise InvalidRequest(
                f"public: {public[:80]!r} is not the public half of a CURVE key; use 40 characters of Z85",
                field="public",
            )
        if self.curve_identity(public) is not None:
            raise InvalidRequest(f"public: {public} is already registered; revoke it first", field="public")
        key = ApiKey(secrets.token_hex(6), name, list(allow), now, "", public, max_queues)
        await self._add(key)
        return key

    def curve_identity(self, public: str) -> CurveIdentity | None:
        """The identity of a connection with this CURVE key, None if the key is not registered."""
        return next((CurveIdentity(key.id) for key in self._keys.values() if key.public == public), None)

    async def own_pair(self) -> CurvePair:
        """The broker's own CURVE key pair, created on first use and kept in the store."""
        stored = (await self._store.records(PAIR_KIND)).get("server")
        if stored is not None:
            return msgspec.json.decode(stored, type=CurvePair)
        import zmq

        pair = CurvePair(*(half.decode() for half in zmq.curve_keypair()))
        await self._store.save_record(PAIR_KIND, "server", msgspec.json.encode(pair))
        return pair

    async def revoke(self, id: str) -> None:
        """Revoke a key, with immediate effect."""
        if id not in self._keys and self._store.shared:
            await self.load()
        if id not in self._keys:
            raise NotFound(f"id: there is no key {id!r}", field="id")
        await self._close()
        await self._store.save_record(KIND, id, None)
        self._keys.pop(id, None)
        self._known = {secret: key for secret, key in self._known.items() if key.id != id}
        self._allowed.clear()
        self.on_loss()

    def identify(self, secret: Secret | None) -> ApiKey:
        """The key that a credential belongs to; raise `Unauthorized` if it is missing or unknown."""
        if secret is None:
            raise self._unauthorized(
                "an API key is required: `api_key=KEY` in Python, `Authorization: Bearer KEY` over HTTP, `api_key` in "
                "a ZeroMQ request"
            )
        return self._known.get(secret) or self._identify(secret)

    def check(self, secret: Secret | None, verb: str, queue: str | None, kind: str = "queue") -> None:
        """Raise unless the holder of `secret` may do `verb` on a queue, on what `kind` says, or on the broker as a
        whole."""
        if self.open:
            return
        key = self.identify(secret)
        cache_key = (key.id, verb, queue or "")
        allowed = self._allowed.get(cache_key)
        if allowed is None:
            allowed = any(_covers(scope, verb, queue) for scope in key.allow)
            if len(self._allowed) >= 16 * _CACHE:
                self._allowed.clear()
            if len(cache_key[2]) <= NAME_LENGTH:  # a longer one is no valid queue name and would waste memory
                self._allowed[cache_key] = allowed
        if not allowed:
            target = f"all queues (`{verb}` or `{verb}:*`)"
            if queue is not None:
                target = f"{kind} {queue[:NAME_LENGTH]!r}"
            raise Forbidden(f"key {key.name!r} does not allow {verb} on {target}")

    def check_either(
        self, secret: Secret | None, verb: str, other: str, queue: str | None, kind: str = "queue"
    ) -> None:
        """Raise unless the holder of `secret` may do one of two verbs."""
        if self.may(secret, other, queue):
            return
        try:
            self.check(secret, verb, queue, kind)
        except Forbidden as error:
            text = error.text.replace(f"does not allow {verb} on", f"allows neither {verb} nor {other} on", 1)
            raise Forbidden(text) from None

    def scope(self, secret: Secret | None) -> str:
        """Within which a caller's idempotency keys are its own: the id of its key. While there are no keys, all callers
        share one scope."""
        return "" if self.open else self.identify(secret).id

    def may(self, secret: Secret | None, verb: str, queue: str | None) -> bool:
        """Whether `check` would pass."""
        with suppress(Unauthorized, Forbidden):
            self.check(secret, verb, queue)
            return True
        return False

    def check_new_queues(
        self, secret: Secret | None, new: Sequence[str], queues: Collection[str], version: Hashable
    ) -> None:
        """Raise if the holder of `secret` may not create `new` queues. `version` changes with `queues`."""
        self._check_new(secret, "queue", new, queues, version)

    def check_new_topic(self, secret: Secret | None, new: str, topics: Collection[str], version: Hashable) -> None:
        """Raise if the holder of `secret` may not create a topic: a key may create as many topics as queues."""
        self._check_new(secret, "topic", [new], topics, version)

    def _check_new(
        self,
        secret: Secret | None,
        kind: Literal["queue", "topic"],
        new: Sequence[str],
        names: Collection[str],
        version: Hashable,
    ) -> None:
        if self.open or not new:
            return
        key = self.identify(secret)
        if key.max_queues is None:
            return
        state = (version, len(names))
        counted, count = self._counted.get((kind, key.id), ((None, -1), 0))
        if counted != state:  # counting is expensive, so refused calls are not counted for again
            patterns = {scope.partition(":")[2] or "*" for scope in key.allow}
            count = sum(any(fnmatchcase(name, pattern) for pattern in patterns) for name in names)
            self._counted[kind, key.id] = state, count
        if count + len(new) > key.max_queues:
            allowed = max(key.max_queues - count, 0)
            text = (
                f"{kind}: {new[allowed][:NAME_LENGTH]!r} cannot be created, "
                f"{count + allowed} {kind}{'s match' if count + allowed != 1 else ' matches'} key {key.name!r}, "
                f"whose max_queues is {key.max_queues}; delete some, or use a key with a higher max_queues"
            )
            raise (TooManyQueues if kind == "queue" else TooManyTopics)(text, field=kind)

    def _check(self, name: str, allow: Sequence[str], max_queues: int | None) -> None:
        rules.check_text(name, "name", Limits())
        if not name.isprintable():
            raise InvalidRequest(f"name: {name!r} has a control character; use letters, digits, signs", field="name")
        if max_queues is not None:
            rules.check_count(max_queues, "max_queues", 0, 2**31)
        if not allow:
            raise InvalidRequest("allow: empty; use at least one VERB:PATTERN such as send:orders.*", field="allow")
        if len(allow) > _MOST_SCOPES:
            raise InvalidRequest(f"allow: {len(allow)} permissions; at most {_MOST_SCOPES}", field="allow")
        for scope in allow:
            problem = _problem(scope)
            if problem is not None:
                raise InvalidRequest(f"allow: {show(scope)} {problem}", field="allow")

    @property
    def managed(self) -> bool:
        """Whether some key allows to create and revoke keys."""
        return any(_covers(scope, "admin", None) for key in self._keys.values() for scope in key.allow)

    async def _add(self, key: ApiKey) -> None:
        self._store.check_space(0, 1)
        await self._close()
        await self._store.save_record(KIND, key.id, msgspec.json.encode(key))
        self._keys[key.id] = key
        was_open, self.open = self.open, False
        if was_open:
            self.on_loss()

    async def _close(self) -> None:
        """Record that there have been keys, before the first is created or, in older stores, one is revoked."""
        if not self._closed:
            await self._store.save_record(CLOSED_KIND, "since", b"")
            self._closed = True

    def _unauthorized(self, text: str, field: str | None = None) -> Unauthorized:
        return Unauthorized(text if self._keys else text + _NO_KEYS, field=field)

    def _identify(self, secret: Secret) -> ApiKey:
        if isinstance(secret, CurveIdentity):
            key = self._keys.get(secret.id)
            if key is None:
                raise self._unauthorized("the CURVE key of this connection was revoked", "curve_key")
        elif isinstance(secret, AwsIdentity):
            key = self._keys.get(secret.access_key.removeprefix(ACCESS_KEY).lower())
            if key is None or key.access_key != secret.access_key:
                raise self._unauthorized("this access key is unknown or was revoked")
        elif not secret:
            raise self._unauthorized("the API key is empty, or `Bearer` is missing: send `Authorization: Bearer KEY`")
        else:
            parts = secret.split("_", 2)
            key = self._keys.get(parts[1]) if len(parts) == 3 else None
            if key is None or not hmac.compare_digest(key.hash, _hash(secret)):
                raise self._unauthorized("this API key is unknown or was revoked")
        if len(self._known) >= _CACHE:
            self._known.clear()
        self._known[secret] = key
        return key


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()


def _problem(scope: object) -> str | None:
    """Why a scope is invalid, or could never match; None if it can."""
    verb, colon, pattern = scope.partition(":") if isinstance(scope, str) else ("", "", "")
    if verb not in (*VERBS, "*") or (colon and not pattern) or len(pattern) > NAME_LENGTH:
        return f"is not VERB:PATTERN; the verbs are {', '.join(VERBS)} and *"
    if colon and _PATTERN.fullmatch(pattern) is None:
        several = "give several as one permission each; " if "," in pattern else ""
        return f"matches no queue or topic: {several}a pattern has A-Z a-z 0-9 . _ - and *"
    if verb == "admin" and pattern not in ("", "*"):
        return "allows nothing: admin is for all queues; use admin"
    return None


def _covers(scope: str, verb: str, queue: str | None) -> bool:
    allowed, _, pattern = scope.partition(":")
    if allowed not in (verb, "*"):
        return False
    if queue is None:
        return pattern in ("", "*")
    return not pattern or fnmatchcase(queue, pattern)
