"""A store in PostgreSQL, which several brokers may share."""

from miniq.store.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
