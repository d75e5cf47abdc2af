"""Who may connect: CURVE with an allow-list. CURVE alone encrypts and lets in whoever knows the broker's public key."""

from __future__ import annotations

import zmq
from zmq.auth.asyncio import AsyncioAuthenticator

from miniq.broker.keyring import CurvePair, KeyRing

DOMAIN = "miniq"


class _AllowList:
    """Asked by the library about each connection that is being made."""

    def __init__(self, keys: KeyRing) -> None:
        self._keys = keys

    def callback(self, domain: str, key: bytes) -> bool:
        return self._keys.proven(key.decode("ascii")) is not None


def guard(context: zmq.Context[zmq.Socket[bytes]], keys: KeyRing) -> AsyncioAuthenticator:
    """Let only listed keys connect to the sockets of a context that `require` one; to be stopped with it."""
    guard = AsyncioAuthenticator(context)
    guard.start()
    guard.configure_curve_callback(DOMAIN, _AllowList(keys))
    return guard


def require(socket: zmq.Socket[bytes], pair: CurvePair) -> None:
    """Have a socket that is not bound yet speak CURVE, and nothing else."""
    socket.curve_server = True
    socket.curve_publickey = pair.public.encode()
    socket.curve_secretkey = pair.secret.encode()
    socket.zap_domain = DOMAIN.encode()
