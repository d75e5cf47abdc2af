"""TLS of the HTTP server: its certificate, which is replaced while the server runs, and those that clients must have.

The files are read again on SIGHUP, and when one of them has changed. New connections get what was read last; others are
not affected. A pair that is renewed only by half is not used: the previous one stays until both halves are there.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import signal
import ssl
from pathlib import Path

from miniq.errors import InvalidRequest
from miniq.files import check_regular
from miniq.options import Options

log = logging.getLogger("miniq.server")

WATCH_INTERVAL = 1.0
"""Seconds between checks whether the files have changed."""


_NOT_TLS = ("HTTP_REQUEST", "HTTPS_PROXY_REQUEST", "WRONG_VERSION_NUMBER")
"""Failures for which there is no alert, because the client did not begin a handshake: the client would wait in vain."""


class _AlertingSSLObject(ssl.SSLObject):
    """Tells the client why a handshake fails. The event loop discards unsent bytes when a handshake raises an error, so
    that is raised one step later: once the alert has been sent, and the client has reacted."""

    _failure: ssl.SSLError | None = None

    def do_handshake(self) -> None:
        if self._failure is not None:
            raise self._failure
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as error:
            if error.reason in _NOT_TLS:
                raise
            self._failure = error
            raise ssl.SSLWantReadError from error


def _not_a_pair(cert: str, key: str | None, error: OSError) -> InvalidRequest:
    """Why a certificate and a private key cannot be used."""
    with contextlib.suppress(OSError):
        pem = Path(key or cert).read_bytes()
        if b"ENCRYPTED" in pem:
            text = (
                f"tls_key: {key or cert} is encrypted; use a key without a passphrase "
                f"(openssl pkey -in {key or cert} -out NEWFILE)"
            )
            return InvalidRequest(text, field="tls_key")
        if key is None and b"CERTIFICATE-" in pem and b"PRIVATE KEY-" not in pem:
            text = f"tls_cert: {cert} contains no private key; name its file with tls_key (--tls-key)"
            return InvalidRequest(text, field="tls_cert")
    reason = re.sub(r"^\[.*?\] | \(_ssl\.c:\d+\)$", "", str(error))
    text = f"tls_cert: {cert} and {key} are not a certificate and its private key: {reason}"
    if key is None:
        text = f"tls_cert: {cert} does not contain a certificate and its private key: {reason}"
    return InvalidRequest(text, field="tls_cert")


class Certificate:
    """The certificate of a server, and the authority of its clients if these must have certificates."""

    def __init__(self, cert: str, key: str | None, client_ca: str | None) -> None:
        self._cert, self._key, self._client_ca = cert, key, client_ca
        self._version = self._read_version()
        self._current = self._load()
        self.context = self._load()
        """What the server listens with."""
        self.context.sni_callback = self._choose
        self.context.sslobject_class = _AlertingSSLObject

    @staticmethod
    def of(options: Options) -> Certificate | None:
        """The certificate that the options name, None if the server does not use TLS."""
        if options.tls_cert is None:
            return None
        return Certificate(options.tls_cert, options.tls_key, options.tls_client_ca)

    def _load(self) -> ssl.SSLContext:
        """A context with the files as they are now; `InvalidRequest` if they cannot be used."""
        cert, key, client_ca = self._cert, self._key, self._client_ca
        for path, field in ((cert, "tls_cert"), (key, "tls_key"), (client_ca, "tls_client_ca")):
            if path is not None:
                check_regular(path, field)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(cert, key, lambda: "")  # an encrypted key is refused instead of asked for
        except (ssl.SSLError, OSError) as error:
            raise _not_a_pair(cert, key, error) from None
        if client_ca is not None:
            # A resumed session would skip the check against an authority that has changed since; only TLS 1.3 can do
            # without resumption, and hides the names in client certificates.
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            context.num_tickets = 0
            context.verify_mode = ssl.CERT_REQUIRED
            try:
                context.load_verify_locations(client_ca)
            except (ssl.SSLError, OSError) as error:
                text = f"tls_client_ca: {client_ca} is not a file with certificates: {error}"
                raise InvalidRequest(text, field="tls_client_ca") from None
        return context

    def _choose(self, connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        """Called during each handshake, also if the client names no server."""
        connection.context = self._current

    def reload(self) -> None:
        """Read the files again; if they are invalid, keep what was read before."""
        self._version = self._read_version()
        try:
            self._current = self._load()
        except InvalidRequest as error:
            log.error("the certificate was not reloaded, the previous one stays in use: %s", error.text)
        else:
            log.info("reloaded the certificate %s", self._cert)

    async def watch(self) -> None:
        """Reload the files whenever one of them has changed."""
        while True:
            await asyncio.sleep(WATCH_INTERVAL)
            if self._read_version() != self._version:
                self.reload()

    def _read_version(self) -> list[tuple[int, ...] | None]:
        """What differs if a file was written or replaced, also through a symbolic link."""
        version: list[tuple[int, ...] | None] = []
        for path in filter(None, (self._cert, self._key, self._client_ca)):
            try:
                found = os.stat(path)
                version.append((found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns))
            except OSError:
                version.append(None)
        return version


def ignore_hangup() -> None:
    """Make SIGHUP harmless. Python leaves a signal ignored until the process has ended; a handler it removes before."""
    with contextlib.suppress(ValueError):  # not in the main thread
        signal.signal(signal.SIGHUP, signal.SIG_IGN)


def reload_on_hangup(certificate: Certificate | None) -> None:
    """Reload the certificate on SIGHUP, which otherwise does nothing. This is not a handler of the event loop, because
    a loop restores the default when it closes: to end the process."""
    pending = False

    def reload() -> None:
        nonlocal pending
        pending = False
        if certificate is None:
            log.info("SIGHUP: there is no certificate to reload")
        else:
            certificate.reload()

    loop = asyncio.get_running_loop()

    def on_hangup(*_: object) -> None:
        nonlocal pending
        if not pending:  # signals that arrive faster than files can be read share one reload
            pending = True
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(reload)

    with contextlib.suppress(ValueError):  # not in the main thread
        signal.signal(signal.SIGHUP, on_hangup)
