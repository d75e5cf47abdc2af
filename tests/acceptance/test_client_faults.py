"""Clients of a server when things go wrong, over HTTP and ZeroMQ alike: lost answers, and servers that die."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import miniq
from tests.acceptance.client_wires import Cut, Proxy, Wire
from tests.acceptance.faces import Opener
from tests.kit import wait_for
from tests.serving import Served, free_ports, serving


class Place:
    """Ports on which one server after the other is found."""

    def __init__(self) -> None:
        self._http, self._command = free_ports(2)

    def serving(self, store: str) -> contextlib.AbstractContextManager[Served]:
        return serving(store, self._http, f"--command-port={self._command}")


@pytest.fixture
def behind(server: Served, proxy: Proxy) -> Iterator[miniq.Client]:
    """A client that does not go through the proxy, to see what became of it all."""
    with miniq.connect(server.url) as mq:
        yield mq


# Lost answers


@pytest.mark.parametrize("position", [0, 1, 9, 17, 60, 110, 130, 150])
def test_a_send_whose_answer_is_cut_off_is_added_once(
    opener: Opener, proxy: Proxy, behind: miniq.Client, position: int
) -> None:
    proxy.cuts = [Cut(answer=position), Cut(answer=proxy.greeting + position % 60 if proxy.greeting else position)]
    id = opener(proxy.url).queue("jobs").send({"n": 1})
    assert [m.id for m in behind.queue("jobs").peek()] == [id]
    assert proxy.accepted == 3


@pytest.mark.parametrize("position", [0, 1, 50, 150, 300])
def test_a_send_that_is_cut_off_on_its_way_is_added_once(
    opener: Opener, proxy: Proxy, behind: miniq.Client, position: int
) -> None:
    proxy.cuts = [Cut(request=position), Cut(request=position)]
    ids = opener(proxy.url).queue("jobs").send_many(["x" * 100, b"y" * 100, "z"])
    assert [m.id for m in behind.queue("jobs").peek()] == ids
    assert proxy.accepted == 3


def test_an_ack_on_an_idle_connection_that_was_closed_does_not_count_as_repeated(
    proxy: Proxy, behind: miniq.Client
) -> None:
    with miniq.connect(proxy.url) as mq:  # a loop for async clients would have to run to notice the end
        mine = mq.queue("jobs")
        mine.send(1)
        (message,) = mine.receive()
        proxy.drop_all()
        wait_for(lambda: not proxy.open)
        behind.queue("jobs").remove(message.id, message.receipt)
        assert mine.ack([message]) == ["missing"]


def test_what_was_done_before_its_answer_was_lost_is_a_success(
    opener: Opener, proxy: Proxy, behind: miniq.Client
) -> None:
    q = behind.queue("jobs")
    mine = opener(proxy.url).queue("jobs")

    def lose_the_answer() -> None:
        proxy.drop_all()
        proxy.cuts = [Cut(answer=proxy.greeting + 1)]

    ids = q.send_many(range(3))
    m, n = mine.receive(max=2)
    for call in (m.ack, n.release, lambda: mine.remove(ids[2]), mine.delete):
        lose_the_answer()
        assert call() in (True, None)
    with pytest.raises(miniq.QueueNotFound):
        q.info()


def test_what_is_not_there_is_an_error_all_the_same(opener: Opener, proxy: Proxy) -> None:
    q = opener(proxy.url).queue("jobs")
    q.configure()
    with pytest.raises(miniq.MessageNotFound):
        q.remove("01890f3e-0000-7000-8000-000000000000")
    q.delete()
    with pytest.raises(miniq.QueueNotFound):
        q.delete()


def test_a_backup_is_not_begun_a_second_time(opener: Opener, proxy: Proxy, tmp_path: Path) -> None:
    proxy.cuts = [Cut(answer=proxy.greeting + 1)]
    with pytest.raises(miniq.StoreUnavailable, match="broke before the reply"):
        opener(proxy.url).backup(tmp_path / "copy")
    assert proxy.accepted == 1


@pytest.mark.parametrize(("opener", "wire"), [("sync", "http"), ("async", "zmq")], indirect=True)
def test_a_receive_whose_answer_is_lost_waits_only_for_the_rest_of_its_time(opener: Opener, proxy: Proxy) -> None:
    def waits() -> list[float]:
        """What each receive asked for, as the server sees it."""
        return [float(found) for found in re.findall(rb'"wait":\s*([\d.]+)', b"".join(proxy.asked))]

    def lose_the_answer() -> None:
        wait_for(waits)
        time.sleep(0.5)  # so much of its time is over then, or more
        proxy.drop_all()

    thread = threading.Thread(target=lose_the_answer)
    thread.start()
    begin = time.monotonic()
    assert opener(proxy.url).queue("jobs").receive(wait=2) == []
    assert time.monotonic() - begin > 1.9
    thread.join()
    first, rest = waits()
    assert first == 2
    assert rest <= 1.5


def test_messages_of_a_lost_answer_come_again(opener: Opener, proxy: Proxy, behind: miniq.Client) -> None:
    behind.queue("jobs").configure(visibility_timeout=0.3)
    behind.queue("jobs").send(1)
    proxy.cuts = [Cut(answer=proxy.greeting + 20)]
    [m] = opener(proxy.url).queue("jobs").receive(wait=5)
    assert (m.body, m.receives) == (1, 2)


def test_a_kept_connection_that_was_closed_is_replaced_silently(opener: Opener, proxy: Proxy) -> None:
    q = opener(proxy.url, retry=0).queue("jobs")
    for n in range(5):
        q.send(n)
        proxy.drop_all()
        time.sleep(0.02)
    assert q.info().counts.ready == 5


def test_calls_go_on_when_the_server_is_killed_and_comes_back(opener: Opener, wire: Wire, tmp_path: Path) -> None:
    store = f"rocksdb:{tmp_path / 'data'}"
    sent: list[tuple[str, int]] = []
    stop = threading.Event()
    errors: list[BaseException] = []

    def send(url: str, base: int) -> None:
        own = Opener(opener.kind)
        try:
            q = own(url, retry=60).queue("jobs")
            n = base
            while not stop.is_set():
                sent.append((q.send(n), n))
                n += 1
        except BaseException as error:
            errors.append(error)
        finally:
            own.close()

    place, rounds, threads = Place(), 3, []
    for number in range(rounds):
        with place.serving(store) as served:
            if not threads:
                threads = [threading.Thread(target=send, args=(wire.of(served), 10**6 * k)) for k in range(4)]
                for thread in threads:
                    thread.start()
            before = len(sent)
            wait_for(lambda: len(sent) >= before + 100)  # noqa: B023
            if number < rounds - 1:
                served.stop(signal.SIGKILL)
                continue
            stop.set()
            for thread in threads:
                thread.join()
            with miniq.connect(served.url) as mq:
                found = everything(mq.queue("jobs"))
    assert errors == []
    assert sorted(found) == sorted(sent)


def test_a_server_that_is_away_is_told_with_its_address_when_the_time_is_over(opener: Opener, wire: Wire) -> None:
    url = f"{wire.scheme}://127.0.0.1:{free_ports(1)[0]}"
    begin = time.monotonic()
    with pytest.raises(miniq.StoreUnavailable, match=f"{url} cannot be reached: "):
        opener(url, retry=0.5).queues()
    assert time.monotonic() - begin > 0.4
    with pytest.raises(miniq.StoreUnavailable, match=f"{url} cannot be reached: "):
        opener(url, retry=0).queues()


@pytest.mark.timeout(40, func_only=True)  # sooner than the wait is over
def test_a_server_that_is_stopped_lets_a_long_poll_return(opener: Opener, wire: Wire, tmp_path: Path) -> None:
    with serving(f"rocksdb:{tmp_path / 'data'}") as served:
        q = opener(wire.of(served), retry=0).queue("jobs")
        q.configure()
        timer = threading.Timer(0.3, os.kill, (served.process.pid, signal.SIGTERM))
        timer.start()
        assert q.receive(wait=50) == []
        timer.join()
        assert served.stop() == 0


@pytest.mark.parametrize(("opener", "wire"), [("sync", "http"), ("async", "zmq")], indirect=True)
def test_a_worker_outlives_its_server(opener: Opener, wire: Wire, tmp_path: Path) -> None:
    store = f"rocksdb:{tmp_path / 'data'}"
    done: list[int] = []
    worker_opener = Opener(opener.kind)

    def work(url: str) -> None:
        q = worker_opener(url, retry=0.2).queue("jobs")
        q.consume(done.append, wait=0.2, stop=lambda: len(done) >= 2)

    place = Place()
    with place.serving(store) as served:
        q = miniq.connect(served.url).queue("jobs")
        thread = threading.Thread(target=work, args=(wire.of(served),))
        thread.start()
        q.send(1)
        wait_for(lambda: done == [1])
        served.stop(signal.SIGKILL)
        time.sleep(0.7)
        with place.serving(store):
            q.send(2)
            thread.join(20)
    worker_opener.close()
    assert done == [1, 2]


def test_failures_leave_no_connection_open(opener: Opener, proxy: Proxy) -> None:
    mq = opener(proxy.url, retry=0, timeout=1)
    q = mq.queue("jobs")
    q.configure()
    before = sockets()
    for _ in range(10):
        proxy.drop_all()
        proxy.cuts = [Cut(answer=proxy.greeting + 5)]
        with pytest.raises(miniq.StoreUnavailable):
            q.info()
    with pytest.raises(miniq.MessageNotFound):
        q.get("x")
    mq.close()
    wait_for(lambda: not proxy.open)
    assert sockets() <= before


def sockets() -> int:
    """How many sockets this process has open."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found += os.readlink(f"/proc/self/fd/{name}").startswith("socket:")
    return found


def everything(q: Any) -> list[tuple[str, int]]:
    found: list[tuple[str, int]] = []
    after = None
    while True:
        page = q.peek(after=after, limit=1000)
        found += [(m.id, m.body) for m in page]
        after = page.next
        if after is None:
            return found
