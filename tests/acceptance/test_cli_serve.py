"""`miniq serve` as a process: what it says, how it ends, what it refuses."""

from __future__ import annotations

import re
import shlex
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import psutil
import pytest

from tests.acceptance.shell import MINIQ, Shell, collect, environment, interrupted, serving
from tests.certificate import write_certificate
from tests.kit import wait_for
from tests.serving import free_ports


def refused(folder: Path, *args: str, code: int = 1, **env: str) -> str:
    """What `miniq serve` says when it does not start."""
    ended = subprocess.run(
        [*MINIQ, "serve", *args], capture_output=True, text=True, cwd=folder, env=environment(**env), timeout=30
    )
    assert ended.returncode == code, ended.stderr
    assert ended.stdout == ""
    assert "Traceback" not in ended.stderr
    if code == 1:
        assert ended.stderr.count("\n") == 1
    return ended.stderr


def started(folder: Path, *args: str, **env: str) -> tuple[subprocess.Popen[bytes], str]:
    """A broker and its line."""
    shell = Shell("", folder, **env)
    del shell.env["MINIQ_URL"]
    process = shell.start("serve", *args)
    assert process.stdout is not None
    return process, process.stdout.readline().decode()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_prints_its_addresses_when_ready_and_ends_with_0(tmp_path: Path, number: int) -> None:
    process, line = started(tmp_path, "--store", "rocksdb:data", "--port", "0")
    url = line.split()[2]
    tcp = line.split()[3]
    assert re.fullmatch(r"tcp://127\.0\.0\.1:\d+", tcp)
    assert line == f"miniq ready: {url} {tcp} store=rocksdb:data durability=fsync\n"
    assert process.stdout is not None
    told = dict(process.stdout.readline().decode().split(maxsplit=1) for _ in range(5))
    assert {name: text.strip() for name, text in told.items()} == {
        "HTTP": url,
        "console": f"{url}/console",
        "docs": f"{url}/docs",
        "ZeroMQ": tcp,
        "command": f"{shlex.quote(sys.executable)} -m miniq send emails hello --url {url}",
    }
    with urllib.request.urlopen(f"{url}/health") as answer:  # noqa: S310
        assert answer.status == 200
    process.send_signal(number)
    ended = collect(process)
    assert (ended.code, ended.out, ended.err) == (0, "", "")
    with serving(tmp_path) as again:
        assert again("queues").code == 0


def test_it_finishes_what_it_is_answering_before_it_ends(tmp_path: Path) -> None:
    process, line = started(tmp_path, "--store", "rocksdb:data", "--port", "0")
    miniq = Shell(line.split()[2], tmp_path)
    waiting = miniq.start("receive", "q", "--wait", "30")
    wait_for(lambda: "ESTABLISHED" in [one.status for one in psutil.Process(process.pid).net_connections()])
    time.sleep(0.3)  # its request follows at once
    process.send_signal(signal.SIGTERM)
    assert collect(process).code == 0
    assert collect(waiting).code == 0


def test_relaxed_durability_is_said_at_start(tmp_path: Path) -> None:
    process, line = started(tmp_path, "--store", "rocksdb:data", "--port", "0", "--durability", "relaxed")
    process.send_signal(signal.SIGTERM)
    ended = collect(process)
    assert line.endswith("durability=relaxed\n")
    assert "durability is relaxed" in ended.err


def test_a_store_may_be_a_plain_folder_as_for_clients(tmp_path: Path) -> None:
    process, line = started(tmp_path, "--store", "data", "--port", "0")
    process.send_signal(signal.SIGTERM)
    assert collect(process).code == 0
    assert "store=rocksdb:data" in line


def test_options_come_from_flags_then_environment_then_file(tmp_path: Path) -> None:
    (tmp_path / "miniq.toml").write_text('store = "rocksdb:from-file"\nport = 1\nauto_create = false\n')
    process, line = started(tmp_path, "--config", "miniq.toml", "--port", "0", MINIQ_STORE="rocksdb:from-environment")
    miniq = Shell(line.split()[2], tmp_path)
    assert "store=rocksdb:from-environment" in line
    assert "no queue" in miniq("send", "q", "1", code=1).err
    process.send_signal(signal.SIGTERM)
    assert collect(process).code == 0


def test_a_second_broker_on_a_folder_is_refused_and_names_the_first(tmp_path: Path) -> None:
    with serving(tmp_path):
        said = refused(tmp_path, "--store", "rocksdb:data", "--port", "0")
    assert "is open in process" in said
    assert "--store" in said


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        said = refused(tmp_path, "--port", str(port), "--no-zmq", "--store", "memory:")
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in said
    assert "another port with --port or MINIQ_PORT" in said


def test_an_address_of_another_machine_is_refused_with_its_flag(tmp_path: Path) -> None:
    said = refused(tmp_path, "--host", "192.0.2.1", "--port", "0", "--store", "rocksdb:keyed", code=1)
    assert "API key" in said
    Shell("", tmp_path)("keys", "create", "k", "--allow", "*", "--store", "rocksdb:keyed")
    said = refused(tmp_path, "--host", "192.0.2.1", "--port", "0", "--store", "rocksdb:keyed", code=1)
    assert "host: cannot listen on 192.0.2.1:0" in said
    assert "--host" in said


def test_a_port_of_zeromq_that_is_taken_is_named_with_its_flag(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for name in ("command", "producer", "consumer"):
            said = refused(tmp_path, "--port", "0", f"--{name}-port", port, "--store", "memory:")
            assert f"{name}_port: cannot listen on 127.0.0.1:{port}: Address already in use" in said
            assert f"--{name}-port or MINIQ_{name.upper()}_PORT" in said
            assert "--no-zmq" in said


def test_it_can_do_without_zeromq(tmp_path: Path) -> None:
    process, line = started(tmp_path, "--store", "memory:", "--port", "0", "--no-zmq")
    process.send_signal(signal.SIGTERM)
    ended = collect(process)
    assert ended.code == 0
    assert "tcp://" not in ended.out
    assert re.fullmatch(r"miniq ready: http://\S+ store=memory: durability=none\n", line)


def test_it_serves_although_nobody_reads_what_it_prints(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    command = shlex.join([*MINIQ, "serve", "--store", "rocksdb:data", "--port", str(port), "--no-zmq"])
    for how in (f"exec {command} >&-", f"exec {command} > >(exec true)", f"exec {command} <&- >&- 2>&-"):
        process = subprocess.Popen(
            ["bash", "-c", how], cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        shell = Shell(f"http://127.0.0.1:{port}", tmp_path)
        until = time.monotonic() + 30
        while True:
            try:
                urllib.request.urlopen(f"{shell.url}/ready").close()  # noqa: S310
                break
            except OSError:
                assert time.monotonic() < until
                assert process.poll() is None, process.stderr.read() if process.stderr else ""
                time.sleep(0.1)
        shell("send", "q", "1")
        process.send_signal(signal.SIGTERM)
        ended = collect(process)
        assert (ended.code, ended.err) == (0, ""), how


INTERRUPTED = """
import atexit
import os
import signal
import uvloop
import miniq_command
from miniq.store.embedded.logged import LoggedKV

def interrupt(owner, name, after):
    original = getattr(owner, name)
    def interrupted(*args):
        made = original(*args)
        setattr(owner, name, original)
        after(made)
        signal.raise_signal(getattr(signal, NAME))
        return made
    setattr(owner, name, interrupted)

def watch(loop):
    atexit.register(lambda: loop.is_closed() or os.write(2, b"the event loop was left open"))

if MOMENT == "loop":
    interrupt(uvloop, "new_event_loop", watch)
else:
    interrupt(LoggedKV, "write", id)
miniq_command.main()
"""


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
@pytest.mark.parametrize("moment", ["loop", "write"])
def test_a_signal_at_a_bad_moment_of_the_start_ends_it(tmp_path: Path, name: str, moment: str) -> None:
    code = f"NAME = {name!r}\nMOMENT = {moment!r}\n{INTERRUPTED}"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "serve", "--store", "rocksdb:data", "--port=0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
        cwd=tmp_path,
    )
    ended = collect(process)
    assert (ended.code, ended.err) == (0, "")
    with serving(tmp_path) as again:
        assert again.url


DROPPED = """
import signal, time, weakref
import miniq_command
from miniq.cli import root

class Gone:
    pass

def main(*args, **options):
    gone = Gone()
    ref = weakref.ref(gone, lambda _: signal.raise_signal(signal.SIGINT))
    del gone
    time.sleep(20)

root.root.main = main
miniq_command.main()
"""


def test_ctrl_c_where_python_drops_exceptions_is_not_lost(tmp_path: Path) -> None:
    """As in the callbacks of imports."""
    command = [sys.executable, "-c", DROPPED]
    ended = subprocess.run(command, capture_output=True, text=True, env=environment(), cwd=tmp_path, timeout=60)
    assert (ended.returncode, ended.stderr) == (1, "miniq: interrupted\n")


def test_ctrl_c_at_any_moment_of_the_start_ends_it_without_a_traceback(tmp_path: Path) -> None:
    codes = set()
    for step in range(16):
        ended = interrupted(step * 0.06, tmp_path, "serve", "--store", "rocksdb:data", "--port", "0")
        # A folder whose creation was interrupted says so at the next start.
        said = [line for line in ended.err.split("\n") if line and "its last start was interrupted" not in line]
        assert said in ([], ["miniq: interrupted"]), (step, ended.err)
        codes.add(ended.code)
    assert codes <= {0, 1, -signal.SIGINT}
    with serving(tmp_path) as again:
        assert again("queues").code == 0


def test_bad_configuration_is_refused_with_its_name_and_value(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("prot = 5001\n")
    assert "bad.toml: prot: no such option (5001)" in refused(tmp_path, "--config", "bad.toml", code=2)
    assert "cannot read nothing.toml" in refused(tmp_path, "--config", "nothing.toml", code=2)
    assert "MINIQ_PORT: 'x' is invalid" in refused(tmp_path, MINIQ_PORT="x", code=2)
    assert "MINIQ_DURABILTY: no such option" in refused(tmp_path, MINIQ_DURABILTY="relaxed", code=2)
    assert "'redis:x' is not a store" in refused(tmp_path, "--store", "redis:x", "--port", "0", code=2)
    assert "tls_cert: cannot read 'no.pem'" in refused(tmp_path, "--tls-cert", "no.pem", "--port", "0", code=2)
    (tmp_path / "no.pem").write_text("nothing")
    told = refused(tmp_path, "--tls-cert", "no.pem", "--port", "0", code=2)
    assert "no.pem does not contain a certificate and its private key" in told
    refused(tmp_path, "--durability", "perhaps", code=2)
    refused(tmp_path, "--port", "70000", code=2)
    refused(tmp_path, "--nonsense", code=2)
    assert not (tmp_path / "miniq-data").exists()


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--curve", "--no-zmq"], "curve: there is no ZeroMQ to encrypt with --no-zmq"),
        (["--allowed-hosts", "mq.example.com:8080,http://foo/bar"], "allowed_hosts: 'http://foo/bar' is not a host"),
    ],
)
def test_options_without_effect_are_refused(tmp_path: Path, flags: list[str], says: str) -> None:
    command = [*MINIQ, "serve", "--store", "memory:", "--port", "0", *flags]
    ended = subprocess.run(command, capture_output=True, text=True, env=environment(), cwd=tmp_path, timeout=30)
    assert ended.returncode == 2
    assert says in ended.stderr


def test_others_than_loopback_need_a_key(tmp_path: Path) -> None:
    said = refused(tmp_path, "--host", "0.0.0.0", "--port", "0", "--store", "rocksdb:data")  # noqa: S104
    assert "miniq keys create" in said
    said = refused(tmp_path, "--host", "0.0.0.0", "--port", "0", "--store", "memory:")  # noqa: S104
    assert "use --store rocksdb:DIR" in said
    assert "keys create" not in said


def test_it_speaks_https_with_a_certificate(tmp_path: Path) -> None:
    authority = write_certificate(tmp_path)
    process, line = started(
        tmp_path, "--store", "memory:", "--port", "0", "--tls-cert", "cert.pem", "--tls-key", "key.pem"
    )
    try:
        url = line.split()[2]
        assert url.startswith("https://")
        context = ssl.create_default_context(cafile=str(authority))
        with urllib.request.urlopen(f"{url}/health", context=context) as answer:  # noqa: S310
            assert answer.status == 200
        trusting = Shell(url, tmp_path, SSL_CERT_FILE=str(authority))
        trusting("send", "q", "1")
        assert trusting("receive", "q", "--body").out == "1\n"
        assert trusting("keys", "list", "--json").out == ""
        assert "certificate" in Shell(url, tmp_path)("queues", code=1).err
    finally:
        process.send_signal(signal.SIGTERM)
        assert collect(process).code == 0


def test_clients_that_pipeline_and_leave_before_the_reply_cause_no_traceback(tmp_path: Path) -> None:
    process, line = started(tmp_path, "--store", "rocksdb:data", "--port", "0")
    port = int(line.split()[2].rsplit(":", 1)[1])
    send = b'POST /v1/queues/q/messages HTTP/1.1\r\nhost: localhost\r\ncontent-length: 10\r\n\r\n{"body":1}'
    configure = b"PUT /v1/queues/q HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n\r\n{}"
    for request in (send, configure):
        for _ in range(30):
            with socket.create_connection(("127.0.0.1", port)) as client:
                client.sendall(request * 4)
    assert Shell(line.split()[2], tmp_path)("queues").code == 0
    process.send_signal(signal.SIGTERM)
    ended = collect(process)
    assert ended.code == 0
    assert "Traceback" not in ended.err
