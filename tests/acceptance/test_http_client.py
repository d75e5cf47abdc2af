"""What is the HTTP client's own: paths in its URL, what travels how, its connections, TLS."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import miniq
from miniq.client._async import pool
from miniq.client._sync.http import HttpConnection
from tests.acceptance.client_wires import HTTP, Proxy, Wire
from tests.acceptance.faces import Opener
from tests.certificate import write_certificate
from tests.kit import wait_for


@pytest.fixture
def wire() -> Wire:
    return HTTP


# URLs and options


def test_a_slash_at_the_end_and_capital_letters_do_no_harm(opener: Opener, server_url: str) -> None:
    assert [info.name for info in opener(server_url.replace("http", "HTTP") + "/").queues()] == ["default"]


def test_trust_is_for_https(opener: Opener) -> None:
    with pytest.raises(miniq.InvalidRequest, match=r"^verify: is for https only") as caught:
        opener(HTTP.nobody, verify=False)
    assert caught.value.field == "verify"


def test_a_path_in_the_url_comes_before_that_of_every_call(opener: Opener, server_url: str) -> None:
    with pytest.raises(miniq.InvalidRequest) as caught:
        opener(server_url + "/console/").queues()
    assert caught.value.text == f"url: there is no broker at {server_url}/console; use {server_url}"


# What travels how


def test_bytes_travel_as_messagepack_and_json_as_it_is(opener: Opener, proxy: Proxy) -> None:
    q = opener(proxy.url).queue("jobs")
    q.send(b"\xff\x00")
    q.send_many([b"\xff\x01", b"\xff\x02"])
    q.send_many([b"\xff\x03", {"a": 1}])
    assert [b"content-type: application/msgpack" in request for request in proxy.asked] == [True, True, False]
    assert [m.body for m in q.receive(max=9)] == [b"\xff\x00", b"\xff\x01", b"\xff\x02", b"\xff\x03", {"a": 1}]


@pytest.mark.parametrize("said", ["application/json", "application/msgpack"])
@pytest.mark.parametrize("heard", ["application/json", "application/msgpack"])
def test_an_edited_message_is_shown_in_the_format_asked_for(server_url: str, said: str, heard: str) -> None:
    with miniq.connect(server_url) as mq:
        id = mq.queue("jobs").send(1)
    change = msgspec.json.encode({"body": {"a": [1]}})
    if said.endswith("msgpack"):
        change = msgspec.msgpack.encode({"body": {"a": [1]}})
    request = urllib.request.Request(  # noqa: S310
        f"{server_url}/v1/queues/jobs/messages/{id}", change, {"content-type": said, "accept": heard}, method="PATCH"
    )
    with urllib.request.urlopen(request, timeout=10) as reply:  # noqa: S310
        read = msgspec.json.decode if heard.endswith("json") else msgspec.msgpack.decode
        assert read(reply.read())["body"] == {"a": [1]}


# Connections


def test_many_tasks_use_as_many_connections_and_no_more(proxy: Proxy) -> None:
    async def main() -> None:
        async with miniq.connect_async(proxy.url) as mq:
            q = mq.queue("jobs")

            async def work(base: int) -> None:
                for n in range(10):
                    await q.send(base + n)

            await asyncio.gather(*(work(10 * k) for k in range(20)))
            assert proxy.accepted <= 20
            assert sorted(m.body for m in await q.receive(max=500)) == list(range(200))

    asyncio.run(main())
    wait_for(lambda: not proxy.open)


def test_connections_that_no_task_uses_are_dropped(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "IDLE", 0.2)

    async def main() -> None:
        async with miniq.connect_async(proxy.url) as mq:
            await mq.queues()
            await asyncio.sleep(0.3)
            await mq.queues()
            assert proxy.accepted == 2
            await asyncio.to_thread(wait_for, lambda: len(proxy.open) == 1)

    asyncio.run(main())


def test_a_connection_is_not_old_because_a_task_used_it_for_long(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "IDLE", 0.2)

    async def main() -> None:
        async with miniq.connect_async(proxy.url) as mq:
            assert await mq.queue("jobs").receive(wait=0.5) == []
            await mq.queues()
            assert proxy.accepted == 1

    asyncio.run(main())


# Calls that are given up


def test_messages_that_come_while_a_receive_is_interrupted_are_given_back(
    server_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(self: Any, exchange: Any, reused: bool) -> Any:
        self._answer.begin()
        self._stream.send(exchange.head, exchange.body, exchange.patience)
        time.sleep(0.2)  # the answer is there, but nobody has read it yet
        monkeypatch.undo()
        raise KeyboardInterrupt

    with miniq.connect(server_url) as mq:
        q = mq.queue("jobs")
        q.send_many([1, 2])
        monkeypatch.setattr(HttpConnection, "_exchange", interrupted)
        with pytest.raises(KeyboardInterrupt):
            q.receive(max=2)
        assert [(m.body, m.receives) for m in q.receive(max=9)] == [(1, 1), (2, 1)], "nobody has seen them"


def test_a_cancelled_call_closes_its_connection(proxy: Proxy) -> None:
    async def main() -> None:
        async with miniq.connect_async(proxy.url) as mq:
            poll = asyncio.create_task(mq.queue("jobs").receive(wait=30))
            await asyncio.to_thread(wait_for, lambda: proxy.asked)
            poll.cancel()
            await asyncio.wait({poll})
            assert poll.cancelled()
            await asyncio.to_thread(wait_for, lambda: not proxy.open)

    asyncio.run(main())


# TLS


@pytest.fixture(scope="module")
def tls_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A server with a certificate of its own for 127.0.0.1."""
    folder = tmp_path_factory.mktemp("tls")
    authority = write_certificate(folder)
    script = """
import sys
from miniq.options import Options
from miniq.server.server import run
options = Options(store="memory:", port=0, zmq=False, tls_cert="cert.pem", tls_key="key.pem")
sys.exit(run(options, lambda ready: print(ready.line, flush=True)))
"""
    with subprocess.Popen([sys.executable, "-c", script], cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().split()[2]
        yield url, authority
        process.terminate()
        assert process.wait(30) == 0


def test_a_server_with_a_certificate_is_trusted_by_its_authority(opener: Opener, tls_server: tuple[str, Path]) -> None:
    url, cert = tls_server
    assert url.startswith("https://")
    q = opener(url, ca=cert).queue("jobs")
    q.send_many(["x" * 100_000] * 20)
    assert sum(len(m.body) for m in q.receive(max=20)) == 2_000_000
    assert q.receive(wait=0.2) == []
    assert opener(url, verify=False).queue("jobs").purge() == 20


def test_a_certificate_that_is_not_trusted_is_told_at_the_first_attempt(
    opener: Opener, tls_server: tuple[str, Path]
) -> None:
    with Proxy(tls_server[0]) as proxy:
        with pytest.raises(miniq.InvalidRequest, match="is not trusted") as caught:
            opener(proxy.url).queues()
        assert caught.value.field == "ca"
        assert proxy.accepted == 1


def test_a_wrong_scheme_is_told_with_the_address(opener: Opener, tls_server: tuple[str, Path], server_url: str) -> None:
    for wrong in (tls_server[0].replace("https", "http"), server_url.replace("http", "https")):
        with pytest.raises(miniq.MiniQError) as caught:
            opener(wrong, retry=0, timeout=3).queues()
        assert wrong in caught.value.text


def test_a_port_without_tls_is_told_at_the_first_attempt(opener: Opener, server_url: str) -> None:
    wrong = server_url.replace("http", "https")
    began = time.monotonic()
    with pytest.raises(miniq.InvalidRequest) as caught:
        opener(wrong, retry=20).queues()
    assert caught.value.text == f"url: {wrong} does not speak TLS; use {server_url}"
    assert time.monotonic() - began < 10


def test_a_file_that_holds_no_certificates_is_told(opener: Opener, tmp_path: Path) -> None:
    (tmp_path / "empty.pem").write_text("nothing")
    for file in (tmp_path / "empty.pem", tmp_path / "missing.pem", tmp_path / "no\0name.pem"):
        with pytest.raises(miniq.InvalidRequest) as caught:
            opener("https://127.0.0.1:1", ca=file)
        assert caught.value.field == "ca"


def test_closing_lets_long_polls_over_tls_return(tls_server: tuple[str, Path]) -> None:
    url, cert = tls_server
    mq = miniq.connect(url, ca=str(cert))
    got: list[Any] = []
    thread = threading.Thread(target=lambda: got.append(mq.queue("jobs").receive(wait=50)))
    thread.start()
    time.sleep(0.3)  # let it get into the broker; the test holds either way
    mq.close()
    thread.join(30)
    assert got == [[]]
