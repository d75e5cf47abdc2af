"""The client: one surface for all transports. `sync.py` and `aio.py` only move calls; the rest does no I/O."""
