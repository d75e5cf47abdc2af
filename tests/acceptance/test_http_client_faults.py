"""The HTTP client and servers that are away for now, do not answer, or answer what no broker says."""

from __future__ import annotations

import asyncio
import socket
import time

import pytest

import miniq
from tests.acceptance.client_wires import Canned, Listener, answer
from tests.acceptance.faces import Opener
from tests.server import clear
from tests.serving import Served

# A server that is away


def test_attempts_grow_rarer(opener: Opener) -> None:
    with Canned(answer("503 Service Unavailable", b"<h1>away</h1>")) as away:
        with pytest.raises(miniq.StoreUnavailable, match="replied 503"):
            opener(away.url, retry=1).queues()
        assert 2 <= away.accepted <= 9  # on a busy machine there is time for fewer


@pytest.mark.parametrize("code", ["store_unavailable", "closed"])
def test_a_broker_that_is_away_for_now_is_asked_again(opener: Opener, server: Served, code: str) -> None:
    clear(server.url)
    problem = b'{"title": "t", "status": 503, "code": "%b", "detail": "for now"}' % code.encode()
    away = answer("503 Service Unavailable", problem, "application/problem+json")
    fine = answer("200 OK", b'{"queues": []}', "application/json")
    with Canned(away, away, fine) as broker:
        assert opener(broker.url).queues() == []
    with Canned(away) as broker, pytest.raises(miniq.StoreUnavailable, match="for now"):
        opener(broker.url, retry=0.1).queues()


def test_a_server_that_does_not_answer_is_not_waited_for_for_ever(opener: Opener) -> None:
    with Canned() as mute:
        begin = time.monotonic()
        with pytest.raises(miniq.StoreUnavailable, match=f"{mute.url} did not reply within 0.3 s"):
            opener(mute.url, timeout=0.3).queues()
        assert time.monotonic() - begin > 0.2
        with pytest.raises(miniq.StoreUnavailable, match=r"within 0.8 s"):
            opener(mute.url, timeout=0.3).queue("jobs").receive(wait=0.5)


class Stray(Listener):
    """Answers, and says something more a moment later that nobody asked for, as proxies do who lose patience."""

    def __init__(self, half: bool = False) -> None:
        self._half = half
        super().__init__()

    def serve(self, connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(answer("200 OK", b'{"queues": []}', "application/json"))
        time.sleep(0.1)
        said = answer("408 Request Timeout", b"", more="connection: close\r\n")
        connection.sendall(said[:20] if self._half else said)
        connection.recv(65536)
        if self._half:
            connection.sendall(said[20:])


def test_what_nobody_asked_for_is_no_answer() -> None:
    with Stray() as proxy, miniq.connect(proxy.url, retry=0) as mq:
        for _ in range(3):
            assert mq.queues() == []
            time.sleep(0.3)
        assert proxy.accepted == 3


def test_half_of_what_nobody_asked_for_is_no_answer_either() -> None:
    async def main(url: str) -> None:
        async with miniq.connect_async(url, retry=0) as mq:
            for _ in range(3):
                assert await mq.queues() == []
                await asyncio.sleep(0.3)

    with Stray(half=True) as proxy:
        asyncio.run(main(proxy.url))
        assert proxy.accepted == 3


# Answers that are not ours

PAGE = b"<html>Welcome to our proxy</html>"


@pytest.mark.parametrize(
    ("said", "error", "text"),
    [
        (answer("200 OK", PAGE), miniq.MiniQError, "replied 200, but not as a MiniQ broker does: text/html"),
        (answer("200 OK", b'{"queues": ['), miniq.MiniQError, "replied 200"),
        (answer("200 OK", b'{"colour": 1}', "application/json"), miniq.MiniQError, "replied 200"),
        (answer("200 OK", b"\xff\xfe", "application/json"), miniq.MiniQError, "replied 200"),
        (answer("204 No Content", b""), miniq.MiniQError, "replied 204"),
        (answer("404 Not Found", PAGE), miniq.MiniQError, "replied 404, but not as a MiniQ broker does: text/html"),
        (answer("500 Oh", b"{", "application/problem+json"), miniq.MiniQError, "replied 500"),
        (answer("502 Bad Gateway", PAGE), miniq.StoreUnavailable, "replied 502"),
        (answer("301 Moved", b"", more="location: http://other/\r\n"), miniq.MiniQError, "http://other/; redirects"),
        (b"HTTP/1.0 200 OK\r\n\r\n" + PAGE, miniq.MiniQError, "replied 200"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", miniq.MiniQError, "does not speak HTTP"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n{", miniq.StoreUnavailable, "before the reply was complete"),
        (b"HTTP/1.1 200 OK\r\ncontent-le", miniq.StoreUnavailable, "before the reply was complete"),
        (b"\x15\x03\x01\x00\x02\x02\x16", miniq.MiniQError, "does not speak HTTP"),
    ],
)
def test_an_answer_that_is_not_ours_is_told_with_status_and_address(
    opener: Opener, said: bytes, error: type[miniq.MiniQError], text: str
) -> None:
    with Canned(said) as stranger, pytest.raises(error) as caught:
        opener(stranger.url, retry=0).queues()
    assert type(caught.value) is error
    assert stranger.url in caught.value.text
    assert text in caught.value.text


def test_an_answer_in_pieces_and_after_an_interim_one_is_read(opener: Opener) -> None:
    said = b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n"
    said += b'HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\n{"q\r\nb\r\nueues": []}\r\n0\r\n\r\n'
    with Canned(said) as server:
        assert opener(server.url).queues() == []
