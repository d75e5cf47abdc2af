"""Processes of a prefork pool end with their parent.

When the main process of a worker is killed, nobody extends its leases, and its messages go to other workers. A child
that was in the middle of a task would go on with it, so that two run at the same time. On Linux the kernel ends it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import Any

_PR_SET_PDEATHSIG = 1
_is_connected = False


def end_with_parent() -> None:
    """Have the children of this process's pool end with it."""
    global _is_connected
    if _is_connected or sys.platform != "linux" or "celery" not in sys.modules:
        return
    from celery.signals import worker_process_init

    worker_process_init.connect(_tie, weak=False)
    _is_connected = True


def _tie(**unused: Any) -> None:
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before the kernel was told
        os.kill(os.getpid(), signal.SIGKILL)
