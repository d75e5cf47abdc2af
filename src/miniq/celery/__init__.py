"""Celery on MiniQ (extra `miniq[celery]`).

- `Backend` is the result backend of `result_backend = "miniq://127.0.0.1:5000"`.
- `Scheduler` is the scheduler of `celery beat -S miniq.celery:Scheduler`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from miniq.celery.backend import Backend as Backend
    from miniq.celery.scheduler import Scheduler as Scheduler

__all__ = ["Backend", "Scheduler"]


def __getattr__(name: str) -> Any:
    """Import what is asked for: workers need no scheduler, and programs that send tasks neither of them."""
    if name == "Backend":
        from miniq.celery.backend import Backend

        return Backend
    if name == "Scheduler":
        from miniq.celery.scheduler import Scheduler

        return Scheduler
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
