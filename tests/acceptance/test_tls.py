"""TLS with real handshakes: versions, and a certificate that is renewed while the server runs."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.certificate import write_certificate
from tests.kit import wait_for


class Server:
    """A server whose log is in a file."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self.log = folder / "log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "miniq", "serve", "--store", "memory:", "--port", "0", "--no-zmq", *flags],
                cwd=folder, stdout=subprocess.PIPE, stderr=log, text=True,
            )  # fmt: skip
        assert self.process.stdout is not None
        self.line = self.process.stdout.readline()
        self.port = int(self.line.split()[2].rpartition(":")[2])

    def hang_up(self, logged: str) -> None:
        """Send SIGHUP, and wait for its line in the log."""
        before = self.log.read_text().count(logged)
        os.kill(self.process.pid, signal.SIGHUP)
        wait_for(lambda: self.log.read_text().count(logged) > before)


@contextmanager
def serving(folder: Path, *flags: str) -> Iterator[Server]:
    server = Server(folder, *flags)
    try:
        yield server
    finally:
        server.process.terminate()
        assert server.process.wait(20) == 0
        server.process.stdout.close()  # type: ignore[union-attr]


def shaken(server: Server, context: ssl.SSLContext, name: str | None = "localhost") -> ssl.SSLSocket:
    """A connection after its handshake."""
    plain = socket.create_connection(("127.0.0.1", server.port), timeout=20)
    return context.wrap_socket(plain, server_hostname=name)


def is_healthy(connection: ssl.SSLSocket) -> bool:
    connection.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
    reply = b""
    while not reply.endswith(b"}"):
        piece = connection.recv(4096)
        if not piece:
            return False
        reply += piece
    return reply.startswith(b"HTTP/1.1 200")


def trusting(authority: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(authority))


TLS = ("--tls-cert", "cert.pem", "--tls-key", "key.pem")


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_tls_12_and_13_are_spoken_and_11_is_refused(tmp_path: Path) -> None:
    authority = write_certificate(tmp_path)
    with serving(tmp_path, *TLS) as server:
        for version, spoken in ((ssl.TLSVersion.TLSv1_2, "TLSv1.2"), (ssl.TLSVersion.TLSv1_3, "TLSv1.3")):
            context = trusting(authority)
            context.minimum_version = context.maximum_version = version
            with shaken(server, context) as connection:
                assert connection.version() == spoken
                assert is_healthy(connection)
        context = trusting(authority)
        context.set_ciphers("ALL:@SECLEVEL=0")  # else this end would refuse TLS 1.1 itself
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
        with pytest.raises(ssl.SSLError, match=r"(?i)alert protocol version|EOF occurred"):
            shaken(server, context)


def test_a_renewed_certificate_is_served_after_sighup_and_a_bad_one_is_not(tmp_path: Path) -> None:
    old = shutil.copy(write_certificate(tmp_path), tmp_path / "old.pem")
    with serving(tmp_path, *TLS) as server, shaken(server, trusting(Path(old))) as kept:
        assert is_healthy(kept)
        new = write_certificate(tmp_path)
        shaken(server, trusting(Path(old))).close()  # nothing has been reloaded yet
        server.hang_up("reloaded the certificate cert.pem")
        with shaken(server, trusting(new)) as connection:
            assert is_healthy(connection)
        unnamed = trusting(new)
        unnamed.check_hostname = False
        shaken(server, unnamed, None).close()  # a client that names no server
        with pytest.raises(ssl.SSLCertVerificationError):
            shaken(server, trusting(Path(old)))
        assert is_healthy(kept)
        for broken in ((tmp_path / "key.pem").read_text(), ""):
            (tmp_path / "cert.pem").write_text(broken)
            server.hang_up("the certificate was not reloaded, the previous one stays in use")
            with shaken(server, trusting(new)) as connection:
                assert is_healthy(connection)
        assert is_healthy(kept)


def test_sighup_ends_no_server_without_tls(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        server.hang_up("SIGHUP: there is no certificate to reload")
        assert server.process.poll() is None
