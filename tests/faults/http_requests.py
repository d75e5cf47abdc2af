"""Random HTTP requests as raw bytes, with what HTTP itself says about each: whether the connection outlives it.

The broker they are for has `predictable` ids, receipts and keys, so a request can name a message or a lease that an
earlier request of its sequence will make.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from miniq.options import Limits
from tests.faults import feature_requests, predictable
from tests.faults.feature_requests import Wanted
from tests.faults.http_oddities import BAD, HARMLESS, ODD

LIMITS = Limits(request_bytes=3000, body_bytes=1000, head_bytes=4000, url_bytes=1000, pipeline=8)
"""Small ones: what is too large need not be large."""


class Asked(Struct, frozen=True):
    """A request. `closes` tells whether the connection must be closed after its answer; None: it may be."""

    label: str
    line: bytes
    headers: tuple[bytes, ...]
    """Lines; those that begin with a space are parts of the line before."""
    body: bytes = b""
    """As it is on the wire, with chunks and trailers."""
    closes: bool | None = False
    needed: int = 0
    """How many of the headers the label is about; the others can be left out."""
    cuts: tuple[int, ...] = ()
    """Where a piece ends, when the request is sent in pieces."""
    before: bytes = b""
    early: bool = False
    """Whether it may be refused for its head before its body turns out to be bad."""

    @property
    def method(self) -> bytes:
        return self.line.partition(b" ")[0]

    @property
    def expects(self) -> bool:
        return any(header.lower().startswith(b"expect:") for header in self.headers)

    def raw(self, slow: bool = False) -> bytes:
        """Its bytes; in the form that the fast lane leaves to the ordinary one, if `slow`."""
        line = self.line
        if slow and line.startswith(SLOWED):
            start = len(SLOWED)
            if line[start : start + 1].isalnum():
                line = SLOWED + b"%%%02X" % line[start] + line[start + 1 :]
        return b"".join(
            [self.before, line, b"\r\n", *(header + b"\r\n" for header in self.headers), b"\r\n", self.body]
        )


SLOWED = b"POST /v1/queues/"


def sequence(chance: Random, keyed: bool) -> list[Asked]:
    """A few requests, each cut in pieces; mostly proper ones."""
    made = _Sequence(chance, keyed)
    asked = [made.request() for _ in range(chance.choice([1, 2, 2, 2, 3, 3, 4, 6, 10, 20]))]
    return [replace(one, cuts=_cuts(chance, len(one.raw()))) for one in asked]


def _cuts(chance: Random, size: int) -> tuple[int, ...]:
    kind = chance.randrange(8)
    if kind < 3:
        return ()
    if kind == 3:
        return (size,)
    if kind == 4 and size < 400:
        return tuple(range(1, size + 1))
    return tuple(sorted({chance.randrange(1, size + 1) for _ in range(chance.choice([1, 2, 5]))}))


class _Sequence:
    """Makes requests that refer to each other."""

    def __init__(self, chance: Random, keyed: bool) -> None:
        self._chance = chance
        self._keyed = keyed
        self._sends = 3
        self._receives = 2

    def request(self) -> Asked:
        chance = self._chance
        kinds: list[tuple[int, Callable[[], Asked]]] = [
            (10, self._hot), (4, self._cold), (3, self._short), (8, self._feature), (2, self._odd_name),
            (1, self._odd_head),
            (1, self._bad_head), (1, self._bad_body), (1, self._too_large), (1, self._long_head),
        ]  # fmt: skip
        make = chance.choices([kind for _, kind in kinds], [weight for weight, _ in kinds])[0]
        return self._with_headers(make())

    # Proper requests

    def _hot(self) -> Asked:
        label, value = self._call()
        media, body = self._encoded(value)
        return self._framed(label, b"POST /v1/queues/%b/%b HTTP/1.1" % (self._queue(), label.encode()), media, body)

    def _call(self) -> tuple[str, Any]:
        """A hot call and its body."""
        chance = self._chance
        kind = chance.choice(["messages", "messages", "receive", "ack", "ack", "release", "extend", "fail"])
        if kind == "messages":
            self._sends += 1
            message = self._message()
            return kind, chance.choice([message, message, {"messages": [message, self._message()]}, {"messages": []}])
        if kind == "receive":
            self._receives += 1
            options = {
                "max": [1, 3, 0, 5000, "1"], "wait": [0, 0, 1, 61], "visibility_timeout": [0, 5, -1, None],
                "consumer": ["me", "", 5], "mode": ["at-most-once", "at-least-once", "twice"],
            }  # fmt: skip
            return kind, self._some(options, 0.25)
        more: dict[str, dict[str, list[Any]]] = {
            "release": {"delay": [0, 5, -1]},
            "extend": {"visibility_timeout": [0, 9]},
            "fail": {"error": ["down", "down", 5], "delay": [0, 5], "dead": [True, False, 1]},
        }
        leases = [self._lease() for _ in range(chance.choice([1, 1, 1, 2, 0]))]
        if kind == "ack" and chance.random() < 0.4:
            leases = [lease | {"result": chance.choice([1, {"a": None}, "x" * 1100])} for lease in leases]
        return kind, {"leases": leases, **self._some(more.get(kind, {}), 0.6)}

    def _message(self) -> Any:
        chance = self._chance
        body = chance.choice([1, "x", {"a": [1, None, "ü"]}, None, "y" * 200])
        options = {
            "priority": [5, 10, True], "delay": [0, 9], "key": ["k", ""], "headers": [{"h": "v"}, {"h": 1}, {}],
            "recipient": ["me"], "group": ["g"], "dedup_id": ["d"], "ttl": [60, -5], "content_type": ["text/plain"],
            "unknown": [1],
        }  # fmt: skip
        return {"body": body, **(self._some(options, 0.12) if chance.random() < 0.4 else {})}

    def _some(self, options: dict[str, list[Any]], share: float) -> dict[str, Any]:
        return {name: self._chance.choice(of) for name, of in options.items() if self._chance.random() < share}

    def _lease(self) -> dict[str, Any]:
        lease = self._proper_lease()
        return self._chance.choice([lease, lease, lease, {"id": "x", "receipt": "y"}, {"id": lease["id"]}])

    def _proper_lease(self) -> dict[str, str]:
        """A lease that an earlier request may have been given."""
        number = self._chance.randrange(max(self._receives, 3)) + 1
        id = predictable.message_id(number - 1 if self._chance.random() < 0.7 else self._chance.randrange(self._sends))
        return {"id": id, "receipt": predictable.receipt(number)}

    def _encoded(self, value: Any) -> tuple[bytes, bytes]:
        """Content type and body, sometimes not what the other says."""
        chance = self._chance
        kind = chance.randrange(12)
        if kind < 6:
            return chance.choice([b"application/json", b"", b"application/json; charset=utf-8"]), json.dumps(
                value
            ).encode()
        if kind < 8:
            return chance.choice([b"application/msgpack", b"application/x-msgpack"]), msgspec.msgpack.encode(value)
        good = json.dumps(value).encode()
        bad = [good[:-1], b"", b"null", b"[]", b'{"body": NaN}', b"\xff", b"{" * 50, good.replace(b"{", b'{"zz":1,', 1)]
        media = [
            b"", b"application/msgpack", b"text/csv", b"application/vnd.apache.arrow.stream", b"application/a+json",
            b"application/x-www-form-urlencoded", b"APPLICATION/JSON",
        ]  # fmt: skip
        return chance.choice(media), chance.choice([good, *bad])

    def _cold(self) -> Asked:
        chance, queue = self._chance, self._queue()
        id = predictable.message_id(chance.randrange(self._sends + 1)).encode()
        get = [
            b"/v1/queues", b"/v1/queues/%b" % queue, b"/v1/queues/%b/messages" % queue, b"/health", b"/ready",
            b"/v1/queues/%b/messages?limit=2" % queue, b"/v1/queues/%b/messages?limit=1_0" % queue,
            b"/v1/queues/%b/messages/%b" % (queue, id), b"/v1/history?limit=5", b"/v1/whoami", b"/v1/keys",
            b"/v1/queues/%b/messages?limit=x&status=ready" % queue, b"/v1/history?after=0&queue=%b" % queue,
            b"/v1/queues/%b/claims" % queue, b"/v1/queues/%b/stages" % queue, b"/nowhere", b"/v1/queues/%b/" % queue,
            b"/v1/events?count=1", b"/docs",
        ]  # fmt: skip
        with_body: list[tuple[bytes, bytes, Any]] = [
            (
                b"PUT",
                b"/v1/queues/%b" % queue,
                self._some({"delay": [0, 5], "history": ["full", "none"], "zz": [1]}, 0.4),
            ),
            (b"PATCH", b"/v1/queues/%b/messages/%b" % (queue, id), self._some({"body": [5], "priority": [3, 99]}, 0.6)),
            (b"POST", b"/v1/queues/%b/purge" % queue, {}),
            (b"POST", b"/v1/queues/%b/redrive" % queue, self._some({"to": ["r", "?"], "ids": [["x"]]}, 0.4)),
            (b"POST", b"/v1/queues/%b/messages/%b/release" % (queue, id), {}),
            (b"POST", b"/v1/queues/%b/claims" % queue, {"group": "g", "after": chance.choice([0, 1])}),
            (b"POST", b"/v1/queues/%b/claims/g/open" % queue, {}),
            (b"POST", b"/v1/keys", {"name": "n", "allow": [chance.choice(["send:q", "none:q"])]}),
            (b"POST", b"/v1/queues/%b/stages/j/1/0/0" % queue, {"messages": [self._message()]}),
            (b"POST", b"/v1/queues/%b/stages/j/1/commit" % queue, {"stages": [{"partition": 0, "attempt": 0}]}),
        ]
        kind = chance.randrange(4)
        if kind == 0:
            method, target, value = chance.choice(with_body)
            return self._framed("cold", b"%b %b HTTP/1.1" % (method, target), *self._encoded(value))
        if kind == 1:
            deleted = [b"/v1/queues/%b" % queue, b"/v1/queues/%b/messages/%b" % (queue, id), b"/v1/keys/%012x" % 2]
            return Asked("cold", b"DELETE %b HTTP/1.1" % chance.choice(deleted), ())
        if chance.random() < 0.02:
            return Asked("head of events", b"HEAD /v1/events HTTP/1.1", ())
        target = chance.choice(get)
        method = chance.choice([b"GET", b"GET", b"GET", b"HEAD", b"POST", b"PUT", b"DELETE", b"OPTIONS", b"PATCH"])
        if kind == 2 and method in (b"GET", b"HEAD") and chance.random() < 0.2:
            return self._framed("get with body", b"%b %b HTTP/1.1" % (method, target), b"", b'{"body":1}')
        return Asked("head" if method == b"HEAD" else "cold", b"%b %b HTTP/1.1" % (method, target), ())

    def _short(self) -> Asked:
        chance = self._chance
        id = predictable.message_id(chance.randrange(self._sends + 1)).encode()
        field = {b"/push_message": "msg", b"/messages/produce": "message", b"/messages": "text"}
        kind = chance.randrange(5)
        if kind == 0:
            target = chance.choice(list(field))
            self._sends += 1
            value = {field[target]: chance.choice([1, "x"]), **self._some({"zz": [1]}, 0.1)}
            return self._framed("short", b"POST %b HTTP/1.1" % target, *self._encoded(value))
        if kind == 1:
            self._receives += 1
            targets = [
                b"/read_messages", b"/messages/consume?limit=1", b"/messages/consume?visibility_timeout=x",
                b"/read_messages?turn_around_time=2", b"/messages/consume?limit=0", b"/messages",
            ]  # fmt: skip
            method = chance.choice([b"GET", b"GET", b"HEAD"])
            return Asked("short", b"%b %b HTTP/1.1" % (method, chance.choice(targets)), ())
        if kind == 2:
            targets = [b"/dev/messages", b"/dev/messages/status?status=processing", b"/dev/messages/count?status=zz"]
            return Asked("short", b"GET %b HTTP/1.1" % chance.choice(targets), ())
        if kind == 3:
            return Asked("short", b"DELETE /messages/%b HTTP/1.1" % chance.choice([id, b"x"]), ())
        method = chance.choice([b"UPDATE", b"UPDATE", b"PUT", b"PATCH"])
        label = "update" if method == b"UPDATE" else "short"
        return self._framed(label, b"%b /messages/%b HTTP/1.1" % (method, id), *self._encoded({"message": 5}))

    def _feature(self) -> Asked:
        """A request of a topic, schedule or result, or of SQS or SNS."""
        chance, queue = self._chance, self._queue()
        lease = self._proper_lease()
        kind = chance.randrange(5)
        if kind == 0:
            wanted = feature_requests.topic(chance, queue.decode(), self._message())
        elif kind == 1:
            wanted = feature_requests.schedule(chance, queue.decode(), self._message())
        elif kind == 2:
            wanted = feature_requests.result(chance, queue, lease["id"].encode())
        elif kind == 3:
            wanted = feature_requests.sqs(chance, queue.decode(), lease)
        else:
            wanted = feature_requests.sns(chance, queue.decode())
        self._sends += 1  # it may have been one, or have handed out messages
        self._receives += 1
        return self._wanted(wanted)

    def _wanted(self, wanted: Wanted) -> Asked:
        """A request whose rights may depend on its body, which therefore may be asked for before it is refused."""
        line = wanted.target + b" HTTP/1.1"
        if wanted.value is None:
            is_long = len(wanted.target) > LIMITS.url_bytes
            return Asked(wanted.label, line, (), closes=None if is_long else False)
        if isinstance(wanted.value, bytes):
            asked = self._framed(wanted.label, line, b"", wanted.value, expects=False)
            headers = (*wanted.headers, *asked.headers)
            return replace(asked, headers=headers, needed=len(headers))
        value = b"application/json", json.dumps(wanted.value).encode()
        if self._chance.random() < 0.2:
            value = self._encoded(wanted.value)
        return self._framed(wanted.label, line, *value, expects=False)

    def _queue(self) -> bytes:
        return self._chance.choice([b"q", b"q", b"q", b"q", b"r", b"default", b"new", b"q.dead"])

    # Odd ones

    def _odd_name(self) -> Asked:
        names = [
            b"q?x", b"?x", b"?", b"q?", b"q%20x", b"%71", b".", b"..", b"%2e%2e", b"x" * 129, b"q/x", b"q%2Fx", b"",
            b"q#x", b"q;x", b"\xc3\xbc", b"%C3%BC", b"%ff", b"q%zz", b"q%00", b"q&x=1", b"q+x", b"q\\x", b"q?limit=1",
            b'q"x', b"q|x", b"~q",
        ]  # fmt: skip
        name = self._chance.choice(names)
        label, value = self._call()
        target = b"/v1/queues/%b/%b" % (name, label.encode())
        target += self._chance.choice([b"", b"", b"", b"?x=1", b"/", b"#f", b"?"])
        if self._chance.random() < 0.1:
            target = b"http://x" + target
        asked = self._framed(
            f"name {name[:20].decode('latin-1')}", b"POST %b HTTP/1.1" % target, b"", json.dumps(value).encode()
        )
        return replace(asked, closes=None)

    def _odd_head(self) -> Asked:
        """Unusual, and valid unless `closes` is None: there the parser decides, which must not depend on pieces."""
        chance = self._chance
        asked = self._hot() if chance.random() < 0.7 else Asked("cold", b"GET /v1/queues/q HTTP/1.1", ())
        change = chance.choice(ODD)
        label, line, headers, before, closes = change
        return replace(
            asked,
            label=f"{label}, {asked.label}",
            line=asked.line.replace(b"HTTP/1.1", line) if line else asked.line,
            headers=(*headers, *asked.headers),
            needed=len(headers) + asked.needed,
            before=before,
            closes=closes,
        )

    def _bad_head(self) -> Asked:
        chance = self._chance
        label, line, headers, body = chance.choice(BAD)
        return Asked(f"bad {label}", line, (b"host: x", *headers), body, closes=True, needed=9)

    def _bad_body(self) -> Asked:
        """A request whose head is good and whose chunks are not."""
        chance = self._chance
        others = [b"POST /push_message", b"POST /messages/produce", b"PUT /v1/queues/q", b"POST /v1/queues/q/redrive"]
        asked = self._hot() if chance.random() < 0.6 else Asked("cold", chance.choice(others) + b" HTTP/1.1", ())
        bad = [
            b"zz\r\n{}\r\n0\r\n\r\n",
            b'a\r\n{"body":1}xx0\r\n\r\n',
            b"fffffffffffffffff\r\n{}",
            b"-1\r\n{}\r\n",
            b"2\r\n{}\r\nx\r\n\r\n",
            b"\r\n\r\n",
            b"2;\x00\r\n{}\r\n0\r\n\r\n",
            b"0\r\nbad trailer\r\n\r\n",
        ]
        body = b"a\r\n" + b'{"body":7}' + b"\r\n" if chance.random() < 0.5 else b""
        number = chance.randrange(len(bad))
        return replace(
            asked,
            label=f"bad chunk {number}, {asked.label.split()[0]}",
            headers=(b"transfer-encoding: chunked",),
            needed=1,
            body=body + bad[number],
            closes=True,
            early=True,
        )

    def _too_large(self) -> Asked:
        chance = self._chance
        size = chance.choice(
            [
                LIMITS.request_bytes - 11,
                LIMITS.request_bytes - 10,
                LIMITS.request_bytes + 1,
                LIMITS.body_bytes + 1,
                70_000,
            ]
        )
        line = chance.choice([b"POST /v1/queues/q/messages", b"POST /push_message", b"PUT /v1/queues/q"])
        asked = self._framed("too large", line + b" HTTP/1.1", b"", b'{"body":"%b"}' % (b"x" * (size - 11)))
        return replace(asked, closes=None)

    def _long_head(self) -> Asked:
        """A head, URL, number of headers or trailers near the limit."""
        chance = self._chance
        more = chance.choice([-1, 0, 1, 1, 5000])
        kind = chance.randrange(4)
        if kind == 0:
            url = b"/v1/queues/" + b"x" * (LIMITS.url_bytes + more - len(b"/v1/queues/"))
            return Asked("long URL", b"GET %b HTTP/1.1" % url, (), closes=None)
        if kind == 1:
            lines = tuple(b"x-%d: y" % number for number in range(LIMITS.head_lines + min(more, 50) - 1))
            return Asked("many headers", b"GET /v1/queues HTTP/1.1", (b"host: x", *lines), closes=None, needed=999)
        if kind == 2:
            asked = Asked("long head", b"GET /v1/queues HTTP/1.1", (b"host: x", b"x: "), closes=None, needed=2)
            padding = b"y" * (LIMITS.head_bytes + more - len(asked.raw()))
            return replace(asked, headers=(b"host: x", b"x: " + padding))
        trailers = b"a: bcd\r\n" * ((LIMITS.head_bytes + max(more, 9)) // 8)
        line = chance.choice([b"POST /v1/queues/q/messages HTTP/1.1", b"POST /push_message HTTP/1.1"])
        body = b'a\r\n{"body":1}\r\n0\r\n' + trailers + b"\r\n"
        return Asked("long trailers", line, (b"transfer-encoding: chunked",), body, closes=True, needed=1, early=True)

    # Framing and headers

    def _framed(self, label: str, line: bytes, media: bytes, body: bytes, expects: bool = True) -> Asked:
        """A request with a body of a known length, or in chunks."""
        chance = self._chance
        headers = [b"content-type: " + media] if media else []
        kind = chance.randrange(10)
        if kind < 6:
            name = chance.choice([b"content-length: ", b"content-length: ", b"Content-Length:", b"CONTENT-LENGTH: \t"])
            digits = (b"%d" if chance.random() < 0.9 else b"%05d") % len(body)
            headers.append(name + digits + chance.choice([b"", b"", b" "]))
            if expects and chance.random() < 0.1:
                headers.append(chance.choice([b"expect: 100-continue", b"Expect: 100-Continue"]))
            return Asked(label, line, tuple(headers), body, needed=len(headers))
        if kind == 6 and not body:
            return Asked(label, line, tuple(headers), needed=len(headers))
        headers.append(chance.choice([b"transfer-encoding: chunked", b"Transfer-Encoding: Chunked"]))
        chunks = []
        while body:
            size = chance.choice([1, 2, len(body), len(body)])
            extension = chance.choice([b"", b"", b";a=b", b';a="b"'])
            digits = (b"%x" if chance.random() < 0.8 else b"%04X") % len(body[:size])
            chunks.append(digits + extension + b"\r\n" + body[:size] + b"\r\n")
            body = body[size:]
        trailers = [
            b"x-trailer: 1\r\n",
            b"authorization: Bearer %b\r\n" % predictable.secret(1).encode(),
            b"content-type: text/csv\r\n",
            b"idempotency-key: trailer\r\n",
            b"accept: application/msgpack\r\n",
            b"host: evil.example.com\r\n",
        ]
        trailer = chance.choice(trailers) if chance.random() < 0.2 else b""
        return Asked(
            f"{label} in chunks" + (" with trailer" if trailer else ""),
            line,
            tuple(headers),
            b"".join(chunks) + b"0\r\n" + trailer + b"\r\n",
            needed=len(headers),
        )

    def _with_headers(self, asked: Asked) -> Asked:
        chance = self._chance
        more = []
        if not any(header.lower().startswith(b"host:") for header in asked.headers):
            more.append(
                b"host: x"
                if chance.random() < 0.9
                else chance.choice([b"host: 127.0.0.1:5000", b"Host: x", b"host: a.example.com"])
            )
        if self._keyed and chance.random() < 0.9:
            names = list(predictable.KEYS)
            number = 1 if chance.random() < 0.4 else 1 + chance.randrange(len(names))
            more.append(b"authorization: Bearer " + predictable.secret(number).encode())
        if chance.random() < 0.3:
            more.append(chance.choice(HARMLESS))
        return replace(asked, headers=(*asked.headers, *more))
