"""Celery on MiniQ (extra `miniq[celery]`).

- `broker_url = "miniq://127.0.0.1:5000"`: `transport.py` is what kombu opens for such a URL, `registration.py` is how
  kombu learns of it. Start with `channel.py`.
- `result_backend = "miniq://127.0.0.1:5000"`: `backend.py`.
- `celery beat -S miniq.celery:Scheduler`: `scheduler.py`.

Nothing here imports kombu or Celery until it is used, so that the command line can read Celery's messages without them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from miniq.celery.backend import Backend as Backend
    from miniq.celery.channel import Channel as Channel
    from miniq.celery.scheduler import Scheduler as Scheduler
    from miniq.celery.transport import TLSTransport as TLSTransport
    from miniq.celery.transport import Transport as Transport

__all__ = ["Backend", "Channel", "Scheduler", "TLSTransport", "Transport"]
_MODULES = {
    "Backend": "backend",
    "Channel": "channel",
    "Scheduler": "scheduler",
    "TLSTransport": "transport",
    "Transport": "transport",
}


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
    return getattr(import_module(f"{__name__}.{module}"), name)
