"""AWS Signature 4: which key signed a request, in its headers or in its URL.

A signature covers the method, the path, the query, some headers and the SHA-256 of the body. What the head of a request
tells is checked before its body is read, and the signature before the body is decoded. It is valid for `SKEW` before
and after the time of the request, or as long as a presigned URL says. As at AWS, it can be used again within that time.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from hashlib import sha256
from urllib.parse import parse_qsl, quote

from msgspec import Struct

from miniq.broker.keyring import AwsIdentity, KeyRing
from miniq.message import SECOND
from miniq.server.http.aws.errors import (
    BAD_SIGNATURE,
    INCOMPLETE_SIGNATURE,
    NO_CREDENTIALS,
    UNKNOWN_KEY,
    AwsError,
)

ALGORITHM = "AWS4-HMAC-SHA256"
SKEW = 15 * 60 * SECOND
MAX_EXPIRES = 7 * 86_400
SERVICES = ("sqs", "sns")
"""The services for which a request may be signed."""
HASH = "x-amz-content-sha256"
"""The header with the SHA-256 of the body, which not every client sends."""
_PART = re.compile(r"\s*(Credential|SignedHeaders|Signature)=([^,\s]+)\s*")
_HASH = re.compile(r"[0-9a-f]{64}")


class Signature(Struct, frozen=True):
    """What a request says about its signature."""

    key: str
    date: str
    region: str
    service: str
    signed: list[str]
    signature: str
    at: str
    expires: int | None = None
    """Seconds for which a presigned URL is valid."""

    @property
    def scope(self) -> str:
        return f"{self.date}/{self.region}/{self.service}/aws4_request"


class SignedHead(Struct, frozen=True):
    """The head of a request, which a signature covers."""

    method: str
    path: str
    """As it was sent, with its percent signs."""
    query: str
    fields: Mapping[str, str]


def read(fields: Mapping[str, str], query: str) -> Signature:
    """The signature of a request; raises if it has none."""
    header = fields.get("authorization", "")
    if header.startswith(ALGORITHM):
        matches = [_PART.fullmatch(piece) for piece in header[len(ALGORITHM) :].split(",")]
        parts = {match[1]: match[2] for match in matches if match is not None}
        return _signature(
            parts.get("Credential"),
            parts.get("SignedHeaders"),
            parts.get("Signature"),
            fields.get("x-amz-date") or fields.get("date", ""),
        )
    if "X-Amz-Signature=" in query:
        given = dict(parse_qsl(query, keep_blank_values=True))
        expires = given.get("X-Amz-Expires", "")
        if given.get("X-Amz-Algorithm") != ALGORITHM or not re.fullmatch(r"[0-9]{1,9}", expires):
            text = f"A presigned URL needs X-Amz-Algorithm={ALGORITHM} and X-Amz-Expires."
            raise AwsError(INCOMPLETE_SIGNATURE, text)
        return _signature(
            given.get("X-Amz-Credential"),
            given.get("X-Amz-SignedHeaders"),
            given.get("X-Amz-Signature"),
            given.get("X-Amz-Date", ""),
            int(expires),
        )
    raise AwsError(NO_CREDENTIALS, "Request is missing Authentication Token")


def _signature(
    credential: str | None, signed: str | None, signature: str | None, at: str, expires: int | None = None
) -> Signature:
    scope = (credential or "").split("/")
    if len(scope) != 5 or scope[4] != "aws4_request" or not signed or not signature:
        text = "Authorization header requires 'Credential', 'SignedHeaders' and 'Signature' parameters."
        raise AwsError(INCOMPLETE_SIGNATURE, text)
    key, date, region, service, _ = scope
    return Signature(key, date, region, service, signed.lower().split(";"), signature, at, expires)


def identify(keys: KeyRing, signature: Signature) -> AwsIdentity:
    """The identity that a signature claims; its key must exist."""
    if keys.aws_secret(signature.key) is None:
        raise _unknown_key()
    return AwsIdentity(signature.key)


def _unknown_key() -> AwsError:
    return AwsError(UNKNOWN_KEY, "The security token included in the request is invalid.")


def check_head(signature: Signature, head: SignedHead, now: int) -> None:
    """Raise unless a signature can be valid, as far as the head of the request tells."""
    if signature.service not in SERVICES:
        services = "' or '".join(SERVICES)
        raise AwsError(BAD_SIGNATURE, f"Credential should be scoped to correct service: '{services}'.")
    _check_time(signature, now)
    _check_headers(signature, head)
    payload = head.fields.get(HASH)
    if payload is not None and _HASH.fullmatch(payload) is None:
        text = f"{HASH} is {payload[:80]!r}; it must be the SHA-256 of the body in hexadecimal digits."
        raise AwsError(BAD_SIGNATURE, text)


def verify(keys: KeyRing, signature: Signature, head: SignedHead, payload: str) -> None:
    """Raise unless the key that a request names has signed it with a body of this SHA-256."""
    secret = keys.aws_secret(signature.key)
    if secret is None:  # revoked since
        raise _unknown_key()
    canonical = _canonical(signature, head, payload)
    key = f"AWS4{secret}".encode()
    for part in (signature.date, signature.region, signature.service, "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    digest = sha256(canonical.encode("utf-8", "surrogateescape")).hexdigest()
    text = f"{ALGORITHM}\n{signature.at}\n{signature.scope}\n{digest}"
    expected = hmac.digest(key, text.encode(), "sha256").hex()
    if not hmac.compare_digest(expected.encode(), signature.signature.encode()):
        raise AwsError(
            BAD_SIGNATURE,
            "The request signature we calculated does not match the signature you provided. Check your AWS Secret "
            "Access Key and signing method. Consult the service documentation for details.",
        )


def _check_time(signature: Signature, now: int) -> None:
    try:
        at = datetime.strptime(signature.at, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    except ValueError:
        text = f"Date must be in ISO-8601 'basic format'. Got '{signature.at[:80]}'."
        raise AwsError(INCOMPLETE_SIGNATURE, text) from None
    if signature.at[:8] != signature.date:
        raise AwsError(BAD_SIGNATURE, "Date in Credential scope does not match YYYYMMDD from ISO-8601 version of date.")
    moment = round(at.timestamp()) * SECOND
    if signature.expires is not None and not 1 <= signature.expires <= MAX_EXPIRES:
        raise AwsError(INCOMPLETE_SIGNATURE, f"X-Amz-Expires must be from 1 to {MAX_EXPIRES}.")
    until = moment + (SKEW if signature.expires is None else signature.expires * SECOND)
    shown = datetime.fromtimestamp(now / SECOND, UTC).strftime("%Y%m%dT%H%M%SZ")
    if now > until:
        raise AwsError(BAD_SIGNATURE, f"Signature expired: {signature.at} is now earlier than {shown}.")
    if moment - now > SKEW:
        raise AwsError(BAD_SIGNATURE, f"Signature not yet current: {signature.at} is still later than {shown}.")


def _check_headers(signature: Signature, head: SignedHead) -> None:
    """Raise unless the signature covers the headers that decide what a request means."""
    needed = ["host", *(name for name in head.fields if name.startswith("x-amz-"))]
    for name in needed:
        if name not in signature.signed:
            raise AwsError(BAD_SIGNATURE, f"'{name[:80]}' must be a 'SignedHeader' in the AWS Authorization.")


def _canonical(signature: Signature, head: SignedHead, payload: str) -> str:
    fields = head.fields
    pairs = [
        (quote(name, safe="-_.~"), quote(value, safe="-_.~"))
        for name, value in parse_qsl(head.query, keep_blank_values=True)
        if signature.expires is None or name != "X-Amz-Signature"
    ]
    query = "&".join(f"{name}={value}" for name, value in sorted(pairs))
    headers = "".join(f"{name}:{' '.join(fields.get(name, '').split())}\n" for name in signature.signed)
    path = quote(head.path or "/", safe="/-_.~")
    return "\n".join([head.method, path, query, headers, ";".join(signature.signed), payload])
