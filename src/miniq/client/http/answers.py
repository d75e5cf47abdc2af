"""Reading HTTP replies piece by piece, and what they mean. No I/O.

A reply is the result of its call, the broker's error, or not from a broker at all, such as a proxy's page.
"""

from __future__ import annotations

import ssl
from typing import Any

import msgspec
from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from miniq.api import codec, shapes
from miniq.client.exchange import Exchange, Retryable, lost, unreachable
from miniq.client.http.target import Target
from miniq.errors import InvalidRequest, MiniQError, StoreUnavailable

_UNREACHABLE = (502, 503, 504)
"""The statuses of a proxy while the broker behind it is unreachable."""
_problem = msgspec.json.Decoder(shapes.Problem).decode


class Answer:
    """Parses one reply after another; `done` is set when one is complete."""

    def __init__(self) -> None:
        self._parser = HttpResponseParser(self)
        self.begin()

    def begin(self) -> None:
        """Start a new reply."""
        self.done = False
        self.status = 0
        self.media = b""
        self.location = b""
        self.size: int | None = None
        self.more = False
        """Whether there were bytes after the reply."""
        self._body: list[bytes] = []
        self.begun = False
        self._headed = self._chunked = self._lasting = False

    def feed(self, data: bytes) -> bool:
        """Parse some bytes; True when the reply is complete. `ValueError` if they are not HTTP."""
        self.begun = True
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade) as error:
            raise ValueError(f"not HTTP: {error}") from None
        return self.done

    def end(self) -> bool:
        """Handle the end of the connection: True if that completes the reply."""
        if self._headed and self.size is None and not self._chunked:
            self.done = True
        return self.done

    @property
    def body(self) -> bytes:
        return self._body[0] if len(self._body) == 1 else b"".join(self._body)

    @property
    def reusable(self) -> bool:
        """Whether the connection can be used for another call."""
        return self.done and not self.more and self.status != 503 and self._lasting

    # The parser calls these

    def on_message_begin(self) -> None:
        if self.done:
            self.more = True

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name == b"content-type":
            self.media = value
        elif name == b"content-length":
            self.size = int(value) if value.isdigit() else None
        elif name == b"location":
            self.location = value
        elif name == b"transfer-encoding":
            self._chunked = True

    def on_headers_complete(self) -> None:
        self._headed = True
        self.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        if self.status < 200:
            self.begin()
        else:
            self.done = True
            self._lasting = self._parser.should_keep_alive()


def judge(exchange: Exchange, answer: Answer, target: Target) -> Any:
    """The result of a reply; raises the error that it is."""
    status = answer.status
    if 200 <= status < 300:
        try:
            return exchange.result(answer.body)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise MiniQError(
                f"{target.url} replied {status}, but not as a MiniQ broker does: {_excerpt(answer, error)}"
            ) from None
    problem = _read_problem(answer)
    if problem is None:
        raise _foreign_reply(answer, target)
    if problem.code == "no_route" and target.prefix and problem.detail.startswith(f"not found: {target.prefix}/"):
        root = target.url.removesuffix(
            target.prefix
        )  # a proxy that serves a broker there would have removed the prefix
        raise InvalidRequest(f"url: there is no broker at {target.url}; use {root}", field="url")
    return exchange.refused(problem, target.url)


def unconnected(target: Target, problem: OSError | UnicodeError) -> Exception:
    """No connection could be established. Another attempt is of no use if the broker's certificate cannot be verified,
    or if the port is one without TLS."""
    if isinstance(problem, ssl.SSLCertVerificationError):
        return _untrusted(target, problem)
    if isinstance(problem, ssl.SSLError) and problem.reason == "WRONG_VERSION_NUMBER":
        plain = f"http{target.url.removeprefix('https')}"
        return InvalidRequest(f"url: {target.url} does not speak TLS; use {plain}", field="url")
    return unreachable(target.url, problem, target.timeout)


def _untrusted(target: Target, problem: ssl.SSLCertVerificationError) -> MiniQError:
    text = getattr(problem, "verify_message", None) or str(problem)
    advice = "name its authority with ca (--ca or MINIQ_CA)"
    return InvalidRequest(f"ca: the certificate of {target.url} is not trusted: {text}; {advice}", field="ca")


_CERTIFICATE_ALERTS = ("CERTIFICATE", "UNKNOWN_CA", "ACCESS_DENIED", "DECRYPT_ERROR")
"""What the names of TLS alerts about a client's certificate contain."""


def broken(target: Target, problem: OSError, *, stale: bool) -> Exception:
    """The connection broke during a call, or the broker did not accept this client's certificate. In TLS 1.3 a client
    learns that only after the handshake."""
    reason = getattr(problem, "reason", None) or ""
    if "ALERT" in reason and any(alert in reason for alert in _CERTIFICATE_ALERTS):
        text = f"client_cert: {target.url} admits only clients with a certificate issued by its authority: {problem}"
        return InvalidRequest(text, field="client_cert")
    return lost(target.url, problem, stale=stale)


def garbled(target: Target, problem: ValueError) -> MiniQError:
    """The reply is not HTTP."""
    return MiniQError(f"{target.url} does not speak HTTP like a MiniQ broker: {problem}")


def _read_problem(answer: Answer) -> shapes.Problem | None:
    if answer.media.partition(b";")[0].strip().lower() != codec.PROBLEM.encode():
        return None
    try:
        return _problem(answer.body)
    except (ValueError, RecursionError):
        return None


def _foreign_reply(answer: Answer, target: Target) -> Exception:
    status = answer.status
    if 300 <= status < 400:
        where = answer.location.decode("latin-1")[:200] or "nowhere"
        return MiniQError(f"{target.url} replied {status} with a redirect to {where}; redirects are not followed")
    text = f"{target.url} replied {status}, but not as a MiniQ broker does: {_excerpt(answer)}"
    if status in _UNREACHABLE:
        return Retryable(StoreUnavailable(text), heard=True)
    return MiniQError(text)


def _excerpt(answer: Answer, error: Exception | None = None) -> str:
    """A short excerpt of a reply, for error texts."""
    media = answer.media.decode("latin-1")[:80] or "no content type"
    begin = answer.body[:80].decode("utf-8", "replace")
    return f"{media}, {begin!r}" + (f" ({error})" if error else "")
