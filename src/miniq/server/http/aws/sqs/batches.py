"""What the batches of SQS have in common: their entries, each of which succeeds or fails for itself."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeVar

from miniq.message import Lease
from miniq.server.http.aws.actions import Call
from miniq.server.http.aws.errors import (
    EMPTY_BATCH,
    IDS_NOT_DISTINCT,
    INVALID_ENTRY_ID,
    TOO_MANY_ENTRIES,
    AwsError,
)
from miniq.server.http.aws.sqs import shapes
from miniq.server.http.aws.sqs.receipts import lease_of

ENTRIES = 10
_ENTRY_ID = re.compile(r"[A-Za-z0-9_-]{1,80}")
L = TypeVar("L", shapes.DeleteEntry, shapes.VisibilityEntry)
E = TypeVar("E", shapes.SendEntry, shapes.DeleteEntry, shapes.VisibilityEntry)


def check_entries(entries: Sequence[E], element: str) -> None:
    """Raise unless these can be the entries of a batch."""
    if not entries:
        raise AwsError(EMPTY_BATCH, f"There should be at least one {element} in the request.")
    if len(entries) > ENTRIES:
        text = f"Maximum number of entries per request are {ENTRIES}. You have sent {len(entries)}."
        raise AwsError(TOO_MANY_ENTRIES, text)
    ids: set[str] = set()
    for entry in entries:
        if _ENTRY_ID.fullmatch(entry.id) is None:
            raise AwsError(
                INVALID_ENTRY_ID,
                "A batch entry id can only contain alphanumeric characters, hyphens and underscores. It can be at most "
                "80 letters long.",
            )
        if entry.id in ids:
            raise AwsError(IDS_NOT_DISTINCT, f"Id {entry.id} repeated.")
        ids.add(entry.id)


def leases_of(call: Call, entries: Sequence[L], failed: list[shapes.FailedEntry]) -> tuple[list[L], list[Lease]]:
    """The entries whose receipt handles are valid, and their leases; the others are added to `failed`."""
    valid: list[L] = []
    leases: list[Lease] = []
    for entry in entries:
        try:
            leases.append(lease_of(call.queue, entry.receipt_handle))
        except AwsError as error:
            failed.append(failure(entry.id, error))
        else:
            valid.append(entry)
    return valid, leases


def sort_out(
    entries: Sequence[E],
    errors: Sequence[AwsError | None],
    successful: list[shapes.BatchEntry],
    failed: list[shapes.FailedEntry],
) -> None:
    """Add entries to those that succeeded or to those that failed."""
    for entry, error in zip(entries, errors, strict=True):
        if error is None:
            successful.append(shapes.BatchEntry(id=entry.id))
        else:
            failed.append(failure(entry.id, error))


def failure(id: str, error: AwsError) -> shapes.FailedEntry:
    """An entry that failed."""
    return shapes.FailedEntry(id, error.kind.is_sender, error.kind.code, error.text)
