"""TLS with real handshakes: versions, certificates that are renewed while the server runs, clients with certificates,
and SIGHUP, which ends no server."""

from __future__ import annotations

import os
import re
import select
import shutil
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

import miniq
from miniq.errors import InvalidRequest, StoreUnavailable
from miniq.options import Options
from miniq.server.server import serve
from tests.acceptance.faces import Opener
from tests.acceptance.shell import Shell
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
        with pytest.raises(ssl.SSLError, match=r"(?i)alert protocol version"):
            shaken(server, context)


async def test_files_that_are_no_pair_are_refused_with_what_is_missing(tmp_path: Path) -> None:
    write_certificate(tmp_path)
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    loaded = serialization.load_pem_private_key(key.read_bytes(), None)
    pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    locked = tmp_path / "locked.pem"
    locked.write_bytes(loaded.private_bytes(pem, pkcs8, serialization.BestAvailableEncryption(b"secret")))
    for pair, text in (
        ((cert, None), f"tls_cert: {cert} contains no private key; name its file with tls_key"),
        ((cert, locked), f"tls_key: {locked} is encrypted; use a key without a passphrase"),
        ((key, None), f"tls_cert: {key} does not contain a certificate and its private key: "),
        ((cert, tmp_path), f"tls_key: '{tmp_path}' is a directory; use the path of a file"),
    ):
        options = Options(store="memory:", tls_cert=str(pair[0]), tls_key=None if pair[1] is None else str(pair[1]))
        with pytest.raises(InvalidRequest, match=re.escape(text)) as refused:
            await serve(options, lambda ready: None)
        assert "_ssl.c" not in refused.value.text


def test_a_client_that_calls_a_tls_port_without_tls_is_told_to_use_https(tmp_path: Path) -> None:
    write_certificate(tmp_path)
    with serving(tmp_path, *TLS) as server:
        client = miniq.connect(f"http://127.0.0.1:{server.port}", retry=0)
        with client, pytest.raises(StoreUnavailable, match=f"uses TLS, its URL is https://127.0.0.1:{server.port}$"):
            client.whoami()
        for junk in (b"DELETE / HTTP/1.1\r\n\r\n", b"CONNECT x HTTP/1.1\r\n\r\n", b"\0" * 50):
            with socket.create_connection(("127.0.0.1", server.port), timeout=10) as plain:
                plain.sendall(junk)
                with suppress(ConnectionResetError):
                    assert plain.recv(1) == b""


def test_a_renewed_certificate_is_served_after_sighup_and_a_bad_one_is_not(tmp_path: Path) -> None:
    old = shutil.copy(write_certificate(tmp_path), tmp_path / "old.pem")
    with serving(tmp_path, *TLS) as server, shaken(server, trusting(Path(old))) as kept:
        assert is_healthy(kept)
        new = write_certificate(tmp_path)
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


def test_a_certificate_is_reloaded_once_both_of_its_files_have_changed(tmp_path: Path) -> None:
    old = shutil.copy(write_certificate(tmp_path), tmp_path / "old.pem")
    renewed = tmp_path / "renewed"
    renewed.mkdir()
    new = write_certificate(renewed)
    with serving(tmp_path, *TLS) as server:
        shutil.copy(renewed / "cert.pem", tmp_path)
        wait_for(lambda: "the certificate was not reloaded, the previous one stays in use" in server.log.read_text())
        shaken(server, trusting(Path(old))).close()
        (renewed / "key.pem").rename(tmp_path / "key.pem")
        wait_for(lambda: "reloaded the certificate cert.pem" in server.log.read_text())
        with shaken(server, trusting(new)) as connection:
            assert is_healthy(connection)
        assert server.log.read_text().count("was not reloaded") == 1


@pytest.mark.timeout(60)
@pytest.mark.parametrize("flag", ["--tls-cert", "--tls-key", "--tls-client-ca", "--config"])
def test_a_pipe_a_device_and_a_directory_are_refused_at_start_instead_of_opened(tmp_path: Path, flag: str) -> None:
    write_certificate(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    command = [sys.executable, "-m", "miniq", "serve", "--store", "memory:", "--port", "0", *TLS]
    for path, kind in (("pipe", "a named pipe"), ("folder", "a directory"), ("/dev/zero", "a device")):
        ended = subprocess.run([*command, flag, path], cwd=tmp_path, capture_output=True, text=True)
        assert ended.returncode == 2
        field = flag.removeprefix("--").replace("-", "_")
        assert f"{field}: '{path}' is {kind}; use the path of a file" in ended.stderr


@pytest.mark.timeout(60)
def test_a_server_whose_certificate_is_replaced_by_a_pipe_goes_on_with_the_old_one(tmp_path: Path) -> None:
    authority = write_certificate(tmp_path)
    with serving(tmp_path, *TLS) as server:
        os.mkfifo(tmp_path / "pipe")
        (tmp_path / "pipe").rename(tmp_path / "key.pem")
        wait_for(lambda: "tls_key: 'key.pem' is a named pipe; use the path of a file" in server.log.read_text())
        server.hang_up("the certificate was not reloaded, the previous one stays in use")
        with shaken(server, trusting(authority)) as connection:
            assert is_healthy(connection)


def test_a_refused_client_over_tls_reads_the_reply_although_it_is_still_writing(tmp_path: Path) -> None:
    authority = write_certificate(tmp_path)
    with serving(tmp_path, *TLS) as server, shaken(server, trusting(authority)) as connection:
        connection.sendall(b"POST /v1/queues/q/messages HTTP/1.1\r\nhost: localhost\r\n")
        connection.sendall(b"x: %b\r\n" % (b"x" * 65536))
        for _ in range(64):
            connection.sendall(b"y" * 65536)
        assert connection.recv(65536).startswith(b"HTTP/1.1 431 ")


def test_an_idle_client_does_not_keep_a_server_from_ending(tmp_path: Path) -> None:
    authority = write_certificate(tmp_path)
    server = Server(tmp_path, *TLS)
    with shaken(server, trusting(authority)) as connection:
        assert is_healthy(connection)
        server.process.terminate()
        assert server.process.wait(60) == 0
    server.process.stdout.close()  # type: ignore[union-attr]
    assert "shutdown exceeded" not in server.log.read_text()


# Clients with certificates


@pytest.fixture(scope="module")
def mutual(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A server that admits only clients with certificates of its authority; its URL, and a folder with some."""
    folder = tmp_path_factory.mktemp("mutual")
    write_certificate(folder)
    with serving(folder, *TLS, "--tls-client-ca", "ca.pem") as server:
        yield f"https://127.0.0.1:{server.port}", folder


def test_a_client_with_a_certificate_of_the_authority_is_served(opener: Opener, mutual: tuple[str, Path]) -> None:
    url, folder = mutual
    q = opener(url, ca=folder / "ca.pem", client_cert=folder / "client.pem").queue("jobs")
    q.send("x")
    assert [message.body for message in q.receive()] == ["x"]
    assert q.purge() == 1


def test_a_client_without_such_a_certificate_is_refused_at_the_first_attempt(
    opener: Opener, mutual: tuple[str, Path], tmp_path: Path
) -> None:
    url, folder = mutual
    write_certificate(tmp_path)
    for client_cert in (None, tmp_path / "client.pem"):
        with pytest.raises(
            miniq.InvalidRequest, match="admits only clients with a certificate issued by its authority"
        ) as caught:
            opener(url, ca=folder / "ca.pem", client_cert=client_cert).queues()
        assert caught.value.field == "client_cert"
    context = trusting(folder / "ca.pem")
    context.load_cert_chain(folder / "client.pem")
    context.maximum_version = ssl.TLSVersion.TLSv1_2  # whose sessions could be resumed after the authority has changed
    with (
        socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=20) as plain,
        pytest.raises(ssl.SSLError, match=r"(?i)alert protocol version"),
    ):
        context.wrap_socket(plain, server_hostname="localhost")


def test_commands_take_certificates_by_flags_or_from_the_environment(mutual: tuple[str, Path], tmp_path: Path) -> None:
    url, folder = mutual
    files = {"MINIQ_CA": str(folder / "ca.pem"), "MINIQ_CLIENT_CERT": str(folder / "client.pem")}
    Shell(url, tmp_path, **files)("send", "jobs", "x")
    flags = ["--ca", files["MINIQ_CA"], "--client-cert", files["MINIQ_CLIENT_CERT"]]
    assert "jobs" in Shell(url, tmp_path)("queues", *flags).out
    assert "jobs" in Shell(url, tmp_path)("queues", *flags, "show", "jobs").out
    said = Shell(url, tmp_path)("queues", code=1).err
    assert "ca: the certificate of https://" in said
    assert said.endswith("; name its authority with ca (--ca or MINIQ_CA)\n")
    assert "client_cert: https://" in Shell(url, tmp_path)("queues", *flags[:2], code=1).err
    assert "--ca is for https:// URLs" in Shell("http://127.0.0.1:1", tmp_path)("queues", *flags, code=2).err
    Shell(str(tmp_path / "store"), tmp_path, **files)("queues", code=2)  # the folder, not the certificate, is wrong


@pytest.mark.parametrize("wrong", ["client_cert", "client_key"])
def test_a_file_that_is_no_certificate_or_key_is_named(opener: Opener, mutual: tuple[str, Path], wrong: str) -> None:
    _, folder = mutual
    options = {"client_cert": folder / "client.pem", wrong: folder / "ca.pem"}
    text = {
        "client_cert": "ca.pem' contains no private key; name its file with client_key (--client-key)",
        "client_key": "ca.pem' are not a certificate and its private key",
    }
    with pytest.raises(miniq.InvalidRequest, match=re.escape(text[wrong])) as caught:
        opener("https://127.0.0.1:1", **options)
    assert caught.value.field == "client_cert"
    with pytest.raises(miniq.InvalidRequest, match="client_key: given without client_cert"):
        opener("https://127.0.0.1:1", client_key=folder / "client.pem")


@pytest.mark.timeout(60)
@pytest.mark.parametrize("wrong", ["ca", "client_cert", "client_key"])
def test_a_client_refuses_a_pipe_as_a_file_instead_of_waiting_for_it(
    opener: Opener, mutual: tuple[str, Path], tmp_path: Path, wrong: str
) -> None:
    url, folder = mutual
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(miniq.InvalidRequest, match=f"{wrong}: .* is a named pipe; use the path of a file") as caught:
        opener(url, **{"client_cert": folder / "client.pem", wrong: pipe})
    assert caught.value.field == wrong


def test_an_authority_of_clients_that_is_none_is_refused_at_start(tmp_path: Path) -> None:
    write_certificate(tmp_path)
    (tmp_path / "empty.pem").write_text("")
    command = [sys.executable, "-m", "miniq", "serve", "--store", "memory:", "--port", "0", *TLS]
    ended = subprocess.run([*command, "--tls-client-ca", "empty.pem"], cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode == 2
    assert "tls_client_ca: empty.pem is not a file with certificates" in ended.stderr


# SIGHUP


@pytest.mark.parametrize("flags", [(), TLS], ids=["plain", "tls"])
def test_sighup_at_any_moment_of_start_and_stop_ends_no_server(tmp_path: Path, flags: tuple[str, ...]) -> None:
    write_certificate(tmp_path)
    serve = ["serve", "--store", "memory:", "--port", "0", "--no-zmq", *flags]
    process = subprocess.Popen(
        [sys.executable, "-c", "import miniq_command; miniq_command.main()", *serve],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        wait_for(lambda: _ignores_hangup(process.pid))  # until then it is Python that starts
        stopping = False
        while process.poll() is None:
            process.send_signal(signal.SIGHUP)
            if not stopping and select.select([process.stdout], [], [], 0.001)[0]:
                stopping = True
                process.terminate()
        assert process.returncode == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()  # type: ignore[union-attr]


def _ignores_hangup(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    ignored = next(line.split()[1] for line in status.splitlines() if line.startswith("SigIgn"))
    return bool(int(ignored, 16) & 1)
