"""CURVE with an allow-list of client keys. Without one, CURVE encrypts but accepts any client that has the broker's
public key."""

from __future__ import annotations

import zmq
from zmq.auth.asyncio import AsyncioAuthenticator

from miniq.broker.keyring import CurvePair, KeyRing

DOMAIN = "miniq"


class _AllowList:
    """Credentials provider: the library calls it during each handshake."""

    def __init__(self, keys: KeyRing) -> None:
        self._keys = keys

    def callback(self, domain: str, key: bytes) -> bool:
        return self._keys.proven(key.decode("ascii")) is not None


def guard(context: zmq.Context[zmq.Socket[bytes]], keys: KeyRing) -> AsyncioAuthenticator:
    """Start the check of client keys for all sockets of a context passed to `require`. Stop it before the context."""
    authenticator = AsyncioAuthenticator(context)
    authenticator.start()
    authenticator.configure_curve_callback(DOMAIN, _AllowList(keys))
    return authenticator


def require(socket: zmq.Socket[bytes], pair: CurvePair) -> None:
    """Make a socket accept only CURVE connections. Must be called before it is bound."""
    socket.curve_server = True
    socket.curve_publickey = pair.public.encode()
    socket.curve_secretkey = pair.secret.encode()
    socket.zap_domain = DOMAIN.encode()
