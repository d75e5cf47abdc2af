"""The ZeroMQ server: `commands.py` parses requests, `router.py` runs one socket in the event loop, `endpoints.py` opens
the command server and the producer and consumer endpoints, and `curve.py` checks client keys."""

from miniq.server.zmq.endpoints import Doors

__all__ = ["Doors"]
