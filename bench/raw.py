"""The baseline: append a batch to a file and wait until it is on disk.

The file only grows, as a log does. A file that is truncated and rewritten reuses its pages in the page cache, which is
several times faster than allocating new ones and would flatter the baseline.
"""

from __future__ import annotations

import os
import time


class RawLog:
    """An append-only file: one write and one fdatasync per batch."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def append(self, data: bytes) -> None:
        """Write all of `data` and wait until it is on disk."""
        written = os.write(self._file, data)
        if written != len(data):
            raise OSError(f"wrote {written} of {len(data)} bytes")
        os.fdatasync(self._file)

    def seconds(self, body: bytes, size: int, batches: int) -> float:
        """The seconds it takes to append `batches` batches of `size` bodies."""
        data = body * size
        started = time.perf_counter()
        for _ in range(batches):
            self.append(data)
        return time.perf_counter() - started

    def close(self) -> None:
        os.close(self._file)
