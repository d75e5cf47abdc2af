"""Every error that MiniQ raises, with a stable code for machines and a text for people.

MiniQError
├── InvalidRequest        invalid            a field is wrong; says which, and what would be right
│   ├── BadName           bad_name           a queue name that is not allowed
│   └── TooLarge          too_large          body, headers or batch over a limit
├── NotFound
│   ├── QueueNotFound     queue_not_found
│   ├── MessageNotFound   message_not_found
│   ├── ClaimUnknown      claim_unknown      no claim of that number was made yet
│   └── ClaimGone         claim_gone         it was acked too long ago, released or purged
├── Conflict
│   ├── StaleReceipt      stale_receipt      somebody else holds the message, or it was given back
│   ├── MessageLeased     message_leased     it is with a consumer; come with its receipt
│   ├── QueueFull         queue_full         the queue's max_length or max_bytes
│   ├── StageUnknown      stage_unknown      a stage that should be committed is not there
│   ├── Fenced            fenced             a newer reader has taken over the group's claims
│   └── QueueProtected    queue_protected    the queue `default` cannot be deleted
├── Denied
│   ├── Unauthorized      unauthorized       an API key is needed, or this one is not known
│   ├── Forbidden         forbidden          the key may not do this on that queue
│   └── CrossOrigin           cross_origin       a browser asks for a page of another site
├── BadRequest                               what a wire cannot make a call of
│   ├── NoRoute           no_route
│   ├── WrongMethod       wrong_method
│   └── WrongMedia        wrong_media        a content type that is not spoken here
├── Closed                closed             the broker or client was closed
├── MissingExtra          missing_extra      an optional driver is not installed
└── StoreError
    ├── NoSpace           no_space           the disk is nearly full; receive and ack go on
    ├── StoreUnavailable  store_unavailable  away for now, try again
    ├── StoreFailed       store_failed       a write or fsync failed: final for this process
    ├── StoreLocked       store_locked       another process has the folder open
    ├── StoreCorrupt      store_corrupt      what is on disk is not what was written
    └── StoreFormat       store_format       written by a version this one does not know
"""

from __future__ import annotations


class MiniQError(Exception):
    """The root: `code` is stable, `text` is for people, `field` names the input that was wrong."""

    code = "error"

    def __init__(self, text: str, *, field: str | None = None) -> None:
        super().__init__(text)
        self.text = text
        self.field = field


class InvalidRequest(MiniQError):
    code = "invalid"


class BadName(InvalidRequest):
    code = "bad_name"


class TooLarge(InvalidRequest):
    code = "too_large"


class NotFound(MiniQError):
    code = "not_found"


class QueueNotFound(NotFound):
    code = "queue_not_found"


class MessageNotFound(NotFound):
    code = "message_not_found"


class ClaimUnknown(NotFound):
    code = "claim_unknown"


class ClaimGone(NotFound):
    code = "claim_gone"


class Conflict(MiniQError):
    code = "conflict"


class StaleReceipt(Conflict):
    code = "stale_receipt"


class MessageLeased(Conflict):
    code = "message_leased"


class QueueFull(Conflict):
    code = "queue_full"


class StageUnknown(Conflict):
    code = "stage_unknown"


class Fenced(Conflict):
    code = "fenced"


class QueueProtected(Conflict):
    code = "queue_protected"


class Denied(MiniQError):
    code = "denied"


class Unauthorized(Denied):
    code = "unauthorized"


class Forbidden(Denied):
    code = "forbidden"


class CrossOrigin(Denied):
    code = "cross_origin"


class BadRequest(MiniQError):
    code = "bad_request"


class NoRoute(BadRequest):
    code = "no_route"


class WrongMethod(BadRequest):
    code = "wrong_method"


class WrongMedia(BadRequest):
    code = "wrong_media"


class Closed(MiniQError):
    code = "closed"


class MissingExtra(MiniQError):
    code = "missing_extra"


class StoreError(MiniQError):
    code = "store_error"


class NoSpace(StoreError):
    code = "no_space"


class StoreUnavailable(StoreError):
    code = "store_unavailable"


class StoreFailed(StoreError):
    code = "store_failed"


class StoreLocked(StoreError):
    code = "store_locked"


class StoreCorrupt(StoreError):
    code = "store_corrupt"


class StoreFormat(StoreError):
    code = "store_format"


def _tree(root: type[MiniQError]) -> dict[str, type[MiniQError]]:
    found = {root.code: root}
    for child in root.__subclasses__():
        found |= _tree(child)
    return found


BY_CODE: dict[str, type[MiniQError]] = _tree(MiniQError)
"""The class for each code: how a client raises again what the broker raised."""
