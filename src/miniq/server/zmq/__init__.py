"""The ZeroMQ door, in parts: `commands.py` (what a request asks for), `router.py` (one socket in the event loop),
`doors.py` (the command server with the producer and the consumer endpoint) and `curve.py` (who may connect)."""

from miniq.server.zmq.endpoints import Doors

__all__ = ["Doors"]
