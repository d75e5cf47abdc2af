"""The small records of the broker: changes that depend on what a record was."""

from __future__ import annotations

from collections.abc import Mapping

from miniq.store.arguments import RecordChange, RecordSet
from miniq.store.contract import RevisionChanged
from miniq.store.mongodb.connection import Database, Session


async def change(db: Database, session: Session, change: RecordChange) -> bool:
    """Make a change in a transaction; False if the record is not what it was."""
    key = {"_id": f"{change.kind}:{change.name}"}
    found = await db.records.find_one(key, {"value": 1}, session=session)
    if (None if found is None else bytes(found["value"])) != change.was:
        return False
    await save(db, session, {(change.kind, change.name): change.value})
    return True


async def save(db: Database, session: Session, values: Mapping[tuple[str, str], bytes | None]) -> None:
    """Write records by kind and name in a transaction, or remove them where the value is None."""
    gone = [f"{kind}:{name}" for (kind, name), value in values.items() if value is None]
    if gone:
        await db.records.delete_many({"_id": {"$in": gone}}, session=session)
    for (kind, name), value in values.items():
        if value is not None:
            key = {"_id": f"{kind}:{name}"}
            record = key | {"kind": kind, "name": name, "value": value}
            await db.records.replace_one(key, record, upsert=True, session=session)


async def save_all(db: Database, session: Session, records: RecordSet) -> None:
    """The same, at a revision only. A concurrent change conflicts with this transaction, which changes it, too."""
    if await revision(db, session) != records.revision:
        raise RevisionChanged
    await save(db, session, records.values)


async def revision(db: Database, session: Session | None = None) -> int:
    """The number of changes of queues and records."""
    found = await db.meta.find_one({"_id": "revision"}, session=session)
    return 0 if found is None else int(found["number"])
