"""Where the tasks of Celery's tests note what they did: a file, in place of the Redis server that the tests use for it.

It has the calls that the tests make, and their answers in bytes.
"""

from __future__ import annotations

import os
import sqlite3
import time

LOOK = 0.05


class Notebook:
    """Lists and numbers by key."""

    def __init__(self) -> None:
        self._file = sqlite3.connect(os.environ["NOTEBOOK"], timeout=30, isolation_level=None)
        self._file.execute(
            "CREATE TABLE IF NOT EXISTS notes (id INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT, note BLOB)"
        )

    def rpush(self, key: str, note: object) -> None:
        data = note if isinstance(note, bytes) else str(note).encode()
        self._file.execute("INSERT INTO notes (key, note) VALUES (?, ?)", (key, data))

    def incr(self, key: str) -> None:
        self.rpush(key, "")

    def get(self, key: str) -> bytes | None:
        count = self.llen(key)
        return str(count).encode() if count else None

    def llen(self, key: str) -> int:
        return len(self.lrange(key, 0, -1))

    def exists(self, key: str) -> bool:
        return self.llen(key) > 0

    def lrange(self, key: str, first: int, last: int) -> list[bytes]:
        assert (first, last) == (0, -1), "only whole lists"
        return [note for (note,) in self._file.execute("SELECT note FROM notes WHERE key = ? ORDER BY id", (key,))]

    def blpop(self, key: str, timeout: float) -> tuple[bytes, bytes] | None:
        end = time.monotonic() + timeout
        take = "DELETE FROM notes WHERE id = (SELECT min(id) FROM notes WHERE key = ?) RETURNING note"
        while True:
            for (note,) in self._file.execute(take, (key,)).fetchall():
                return key.encode(), note
            if time.monotonic() >= end:
                return None
            time.sleep(LOOK)

    def delete(self, *keys: str) -> None:
        for key in keys:
            self._file.execute("DELETE FROM notes WHERE key = ?", (key,))


def get_redis_connection() -> Notebook:
    return Notebook()
