"""Results in PostgreSQL. They are written by the statement that removes their messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from miniq.result import Finished
from miniq.store.arguments import PutResult
from miniq.store.contract import ResultStore
from miniq.store.postgres import rows
from miniq.store.postgres.access import Part
from miniq.store.postgres.rows import Blobs, escape, unescape


class Results(Part, ResultStore):
    """See `ResultStore`."""

    async def find(self, queue: str, ids: Sequence[str], now: int) -> dict[str, Finished]:
        params = {"queue": queue, "ids": rows.array([id for id in ids if rows.is_id(id)]), "now": now}
        return {row[0]: finished(row) for row in await self._db.some("results", params) if row[0] is not None}

    async def put(self, queue: str, id: str, put: PutResult) -> bool:
        params = {"queue": queue, "id": id, "now": put.now, "expected": put.expected}
        if (one := put.finished) is None:
            name = "forget_result"
        else:
            # An insert could bring back what is forgotten at this moment: a result that must be there is updated.
            name = "replace_result" if put.expected else "put_result"
            params |= {"status": one.status, "finished_at": one.finished_at, "until": put.until}
            params |= {"result": one.result, "error": escape(one.error)}
        (done,) = await self._db.one(name, params)
        if done and put.finished is not None:
            self._db.listener.finished(queue)
        return bool(done)


def finished(row: Sequence[Any]) -> Finished:
    """The result in a row of id, status, finished_at, result, error."""
    return Finished(row[1], row[2], row[3], unescape(row[4]))


def columns(ids: Sequence[str], each: Sequence[Finished]) -> dict[str, Any]:
    """Parameters for results."""
    return {
        "kept": rows.array(ids),
        "kept_status": [one.status for one in each],
        "kept_at": rows.array([one.finished_at for one in each]),
        "kept_results": Blobs([one.result or b"" for one in each]),
        "kept_errors": [escape(one.error) for one in each],
    }
