"""What the driver's errors mean to a broker: the one place where they are translated."""

from __future__ import annotations

import psycopg
from psycopg import errors

from miniq.errors import MiniQError, NoSpace, StoreFormat, StoreUnavailable

RETRIED = (errors.DeadlockDetected, errors.SerializationFailure)
"""The server undid the whole change for the sake of another: it can simply be made again."""

_FULL = (errors.DiskFull,)
_RIGHTS = (errors.InsufficientPrivilege,)
_TABLES = (errors.UndefinedTable, errors.UndefinedColumn, errors.UndefinedFunction, errors.InvalidSchemaName)


def translated(error: psycopg.Error) -> MiniQError | None:
    """The error to raise instead, None if this one is a mistake of ours."""
    text = _line(error)
    if isinstance(error, _FULL):
        return NoSpace(f"store: PostgreSQL has no space left: {text}")
    if isinstance(error, _RIGHTS):
        return StoreUnavailable(
            f"store: PostgreSQL refuses: {text}; see docs/howto/postgresql.md for the rights it needs"
        )
    if isinstance(error, _TABLES):
        return StoreFormat(f"store: the tables are not those of this version: {text}; restart to make or migrate them")
    if isinstance(error, (psycopg.OperationalError, errors.ReadOnlySqlTransaction, psycopg.InterfaceError)):
        # Away, starting, shutting down, out of connections, a standby, a statement that was cancelled.
        return StoreUnavailable(f"store: PostgreSQL is not available: {text}")
    return None


def is_disconnect(error: psycopg.Error) -> bool:
    """Whether this says that the server is away, and other connections are likely dead, too."""
    return isinstance(error, psycopg.OperationalError) and (error.sqlstate is None or error.sqlstate[:3] == "57P")


def _line(error: psycopg.Error) -> str:
    return " ".join(str(error).split()) or type(error).__name__
