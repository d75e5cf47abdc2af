"""The names under which stores remember calls that were made and batches that were committed."""

from __future__ import annotations

COMMITTED = "publish\0"
"""How the names of calls begin that committed a batch; no sender may give such a name."""

CALL = "\0"
"""Before the name of a call where dedup ids are remembered too: no sender may give one that begins so."""


def commit_name(job: str, batch: str) -> str:
    """The name of the call that commits a batch."""
    return f"{COMMITTED}{job}\0{batch}"


def call_record(name: str) -> str:
    """The dedup record of a call."""
    return CALL + name


def is_call(record: str) -> bool:
    """Whether a dedup record is that of a call, and says its ids as `ids.spans`; that of a commit says a number."""
    return record.startswith(CALL) and not record.startswith(COMMITTED, len(CALL))
