"""Celery on MiniQ: `broker_url = "miniq://127.0.0.1:5000"`, with `pip install miniq[celery]`.

`transport.py` is what kombu opens for such a URL, `registration.py` is how kombu learns of it. Start with `channel.py`.
Nothing here imports kombu or Celery until it is used, so that the command line can read Celery's messages without them.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

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
