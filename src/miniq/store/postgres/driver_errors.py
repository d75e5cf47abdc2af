"""Translates the driver's errors into ours."""

from __future__ import annotations

import psycopg
from psycopg import errors

from miniq.errors import MiniQError, NoSpace, StoreFormat, StoreUnavailable

RETRIED = (errors.DeadlockDetected, errors.SerializationFailure)
"""The server rolled the transaction back in favour of another; it can be retried."""

_TABLES = (errors.UndefinedTable, errors.UndefinedColumn, errors.UndefinedFunction, errors.InvalidSchemaName)


def translated(error: psycopg.Error) -> MiniQError | None:
    """The error to raise instead, None for a bug of ours."""
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, errors.DiskFull):
        return NoSpace(f"store: PostgreSQL has no space left: {text}")
    if isinstance(error, errors.InsufficientPrivilege):
        return StoreUnavailable(
            f"store: PostgreSQL denied access: {text}; docs/howto/postgresql.md lists the required privileges"
        )
    if isinstance(error, _TABLES):
        return StoreFormat(
            f"store: the tables are not those of this version: {text}; restart to create or migrate them"
        )
    if isinstance(error, (psycopg.OperationalError, errors.ReadOnlySqlTransaction, psycopg.InterfaceError)):
        # Unreachable, starting, shutting down, out of connections, a standby, a cancelled statement.
        return StoreUnavailable(f"store: PostgreSQL is not available: {text}")
    return None


def is_disconnect(error: psycopg.Error) -> bool:
    """Whether the server is gone, so that other connections are probably dead too."""
    return isinstance(error, psycopg.OperationalError) and (error.sqlstate is None or error.sqlstate[:3] == "57P")
