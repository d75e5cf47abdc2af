"""Receipt handles: a message's id and receipt as one opaque text, which is valid for one queue only."""

from __future__ import annotations

from base64 import b64decode, b64encode
from hashlib import blake2b
from uuid import UUID

from miniq.message import Lease, Stored
from miniq.server.http.aws.errors import RECEIPT_HANDLE_IS_INVALID, AwsError

_ID, _CHECK = 16, 8


def handle_of(queue: str, stored: Stored) -> str:
    """The receipt handle of a message that was received."""
    raw = bytes.fromhex(stored.message.id.replace("-", "")) + bytes.fromhex(stored.receipt or "")
    return b64encode(raw + _check(queue, raw)).decode()


def lease_of(queue: str, handle: str) -> Lease:
    """The lease that a receipt handle stands for."""
    try:
        raw = b64decode(handle, validate=True)
    except ValueError:
        raw = b""
    body, check = raw[:-_CHECK], raw[-_CHECK:]
    if len(body) <= _ID or check != _check(queue, body):
        text = f'The input receipt handle "{handle[:1024]}" is not a valid receipt handle.'
        raise AwsError(RECEIPT_HANDLE_IS_INVALID, text)
    return Lease(str(UUID(bytes=body[:_ID])), body[_ID:].hex())


def _check(queue: str, raw: bytes) -> bytes:
    return blake2b(raw + queue.encode(), digest_size=_CHECK).digest()
