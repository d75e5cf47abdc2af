"""How the server's C library keeps memory that was freed. Nothing happens where it is not glibc."""

from __future__ import annotations

import ctypes
from contextlib import suppress

LARGE = 12 << 20
"""Bytes from which memory is mapped for itself, and handed back to the system when it is freed. Above the uploads of
Spark, whose pages would be made anew each time."""
KEPT = 64 << 20
"""Bytes of free memory at the end of the heap that are not handed back at once: the next request needs them."""
M_MMAP_THRESHOLD, M_TRIM_THRESHOLD = -3, -1


def map_large() -> None:
    """Keep large memory, of requests and of the engine, apart from the heap. By itself, glibc raises the limit to up to
    32 MiB with the first large piece that is freed; then requests of some MiB leave holes in the heap which nothing
    fills: one sender of 15 MB at a time made the server grow beyond 1 GB. What smaller pieces leave is handed back by
    `return_free`."""
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.mallopt(M_MMAP_THRESHOLD, LARGE)
        library.mallopt(M_TRIM_THRESHOLD, KEPT)  # else 128 KiB, as soon as the other is set


def return_free() -> None:
    """Hand freed memory back to the system."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
