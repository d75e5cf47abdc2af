"""Creates the tables, and migrates those of an earlier version.

A new store gets `schema.sql`; an old one gets the `migrations/` that it lacks. Both happen at start, in one transaction
under a lock, so that brokers may start at the same time.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from psycopg import AsyncConnection, errors, sql

from miniq.errors import StoreFormat, StoreUnavailable
from miniq.store.postgres.address import Address

OLDEST_SERVER = 140000


def migrations() -> dict[int, str]:
    """The migrations by the version that each leads to."""
    folder = files(__package__).joinpath("migrations")
    names = sorted(file.name for file in folder.iterdir() if file.name[:4].isdigit())
    return {int(name[:4]): folder.joinpath(name).read_text(encoding="utf-8") for name in names}


VERSION = max(migrations())


async def prepare(connection: AsyncConnection[Any], address: Address) -> None:
    """Create or migrate the tables."""
    if connection.info.server_version < OLDEST_SERVER:
        raise StoreFormat(f"store: this is PostgreSQL {connection.info.server_version // 10000}; 14 or later is needed")
    if connection.info.parameter_status("server_encoding") != "UTF8":
        found = connection.info.parameter_status("server_encoding")
        raise StoreFormat(f"store: the database has encoding {found}; create one with ENCODING 'UTF8'")
    if await _version(connection, address.schema) == VERSION:
        return
    try:
        async with connection.transaction():
            await connection.execute(
                "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (f"miniq schema {address.schema}",)
            )
            await _migrate(connection, address.schema, await _version(connection, address.schema))
    except errors.InsufficientPrivilege as error:
        raise StoreUnavailable(
            f"store: cannot create or change tables in schema {address.schema!r}: {' '.join(str(error).split())}; "
            f"let its owner run `CREATE SCHEMA {address.schema} AUTHORIZATION {connection.info.user}`"
        ) from error


async def _version(connection: AsyncConnection[Any], schema: str) -> int:
    """The version of the tables, 0 if there are none."""
    # Not to_regclass(): its cache may lack what was committed while we waited for the lock.
    there = await connection.execute(
        """
        SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = %s AND c.relname = 'meta'
        """,
        (schema,),
    )
    if await there.fetchone() is None:
        return 0
    row = await (await connection.execute("SELECT version FROM meta")).fetchone()
    version = 0 if row is None else int(row[0])
    if version > VERSION:
        raise StoreFormat(
            f"store: the tables have version {version}, this MiniQ knows up to {VERSION}; "
            "a newer version created them, use that one"
        )
    return version


async def _migrate(connection: AsyncConnection[Any], schema: str, version: int) -> None:
    if version == VERSION:
        return
    if not version:
        there = await connection.execute("SELECT FROM pg_namespace WHERE nspname = %s", (schema,))
        if await there.fetchone() is None:
            await connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
        await connection.execute(files(__package__).joinpath("schema.sql").read_bytes())
        await connection.execute("INSERT INTO meta (version) VALUES (%s)", (VERSION,))
        return
    for number, text in migrations().items():
        if number > version:
            await connection.execute(text.encode())
    await connection.execute("UPDATE meta SET version = %s", (VERSION,))
