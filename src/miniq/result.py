"""What became of a message: the record that its queue keeps for a while, and the answer to a client that asks."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

ResultStatus = Literal["waiting", "running", "done", "dead", "unknown"]
"""In the queue, also between two attempts; leased; acked; in the dead-letter queue; removed in another way, forgotten,
or never there."""
Unknown = Literal["return", "wait"]
"""What a call that waits does while nothing is known of an id: it returns, or waits until a result is put."""
RESULT_BYTES = 64 * 1024
"""The default limit of a result."""


class Finished(Struct, frozen=True, array_like=True, gc=False):
    """How a message was finished: by an ack, with its result, or by the last failure, with its error. Or what was put
    under an id that the caller chose; that is `running` while more is to come."""

    status: Literal["done", "dead", "running"]
    finished_at: int
    result: bytes | None = None
    """JSON text; None if the consumer gave none."""
    error: str | None = None


class Progress(Struct, frozen=True, gc=False):
    """What is known of a message. A message that failed before and will be tried again has an error as well."""

    id: str
    status: ResultStatus
    result: bytes | None = None
    error: str | None = None
    finished_at: int | None = None

    @property
    def is_final(self) -> bool:
        """Whether waiting would be in vain."""
        return self.status not in ("waiting", "running")
