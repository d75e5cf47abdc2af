"""TLS of the HTTP server: TLS 1.2 or newer, with a certificate that can be replaced while the server runs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import ssl
from functools import partial

from miniq.errors import InvalidRequest

log = logging.getLogger("miniq.server")


def load_context(cert: str, key: str | None) -> ssl.SSLContext:
    """The context for a certificate with its chain and its private key; `InvalidRequest` if they cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(cert, key, lambda: "")  # an encrypted key is refused instead of asked for
    except (ssl.SSLError, OSError) as error:
        text = f"tls_cert: {cert} and {key or cert} are not a certificate and its private key: {error}"
        raise InvalidRequest(text, field="tls_cert") from None
    return context


class Certificate:
    """The certificate of a server, read again by `reload`. New connections get the new one; others are not affected."""

    def __init__(self, cert: str, key: str | None) -> None:
        self._files = cert, key
        self._current = load_context(cert, key)
        self.context = load_context(cert, key)
        """What the server listens with."""
        self.context.sni_callback = self._choose

    def _choose(self, connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        """Called during each handshake, also if the client names no server."""
        connection.context = self._current

    def reload(self) -> None:
        """Read the files again; if they are invalid, keep the certificate."""
        try:
            self._current = load_context(*self._files)
        except InvalidRequest as error:
            log.error("the certificate was not reloaded, the previous one stays in use: %s", error.text)
        else:
            log.info("reloaded the certificate %s", self._files[0])


def reload_on_hangup(certificate: Certificate | None) -> None:
    """Reload the certificate on SIGHUP, which otherwise does nothing."""
    ignore = partial(log.info, "SIGHUP: there is no certificate to reload")
    with contextlib.suppress(ValueError, RuntimeError, NotImplementedError):  # not in the main thread
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGHUP, ignore if certificate is None else certificate.reload)
