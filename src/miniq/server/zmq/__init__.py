"""The ZeroMQ server: `endpoints.py` opens the command server and the producer and consumer endpoints, `router.py` runs
one socket in the event loop, and `commands.py` parses requests."""

from miniq.server.zmq.endpoints import Endpoints

__all__ = ["Endpoints"]
