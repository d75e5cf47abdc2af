"""What happens to open stores in a forked child.

An engine's background threads do not exist in a child, so no store works there: not the parent's, nor one that the
child opens itself once an engine ran in the parent. Its calls are refused, and the folder's lock stays with the parent.
Destructors of the engine would wait for threads that are gone, and end in a hang or a crash: its objects are never
destroyed in a child, and the child's exit leaves out the C library's exit handlers that were there before the fork.
"""

from __future__ import annotations

import ctypes
import os
from typing import Protocol
from weakref import WeakSet

from miniq.errors import FORK_ADVICE, Closed, StoreError


class ForkAware(Protocol):
    def abandon(self, refusal: Closed) -> None:
        """Give up everything shared with the parent without touching it; refuse all calls from now on."""
        ...


_open: WeakSet[ForkAware] = WeakSet()
_engine_process: int | None = None
"""The first process that opened an engine, in this one or a parent."""


def check(path: str) -> None:
    """Raise if an engine was opened in a parent process; else note that one is opened in this."""
    global _engine_process
    if _engine_process is None:
        _engine_process = os.getpid()
        os.register_at_fork(after_in_child=_abandon_all)
    elif _engine_process != os.getpid():
        raise StoreError(
            f"store: cannot open {path} in a process that was forked from one that had opened a folder: storage "
            f"engines do not survive a fork. {FORK_ADVICE}",
            field="store",
        )


def watch(store: ForkAware) -> None:
    """Have a store abandoned in every forked child."""
    _open.add(store)


def keep_alive(engine: object) -> None:
    """Prevent an object from ever being destroyed in this process, not even when the interpreter ends."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(engine))


def _abandon_all() -> None:
    for store in list(_open):
        store.abandon(Closed(f"the folder was opened before this process was forked. {FORK_ADVICE}"))
    libc = ctypes.CDLL(None)
    if hasattr(libc, "on_exit"):  # in glibc; handlers run in reverse order, with the exit status as argument
        libc.on_exit(libc._exit, None)
        libc.on_exit(libc.fcloseall, None)
