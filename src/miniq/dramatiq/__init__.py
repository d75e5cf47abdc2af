"""Dramatiq on MiniQ (extra `miniq[dramatiq]`).

- `MiniQBroker` is the broker of a Dramatiq program: `dramatiq.set_broker(MiniQBroker("http://127.0.0.1:5000"))`.
- `MiniQResultBackend` keeps what actors return, for Dramatiq's `Results`.
- `MiniQRateLimiterBackend` counts for Dramatiq's rate limiters and barriers, and so for `GroupCallbacks`.
"""

from __future__ import annotations

from miniq.errors import MissingExtra, install

try:
    import dramatiq  # noqa: F401
except ImportError as error:
    raise MissingExtra(f"dramatiq is not installed: {install('dramatiq')}") from error

from miniq.dramatiq.broker import MiniQBroker as MiniQBroker
from miniq.dramatiq.rate_limits import MiniQRateLimiterBackend as MiniQRateLimiterBackend
from miniq.dramatiq.results import MiniQResultBackend as MiniQResultBackend

__all__ = ["MiniQBroker", "MiniQRateLimiterBackend", "MiniQResultBackend"]
