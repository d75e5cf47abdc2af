"""A folder that is removed, renamed or replaced while a process has it open: the process confirms nothing more."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from http.client import HTTPException
from pathlib import Path

import pytest

import miniq
from miniq.errors import MiniQError, StoreFailed
from miniq.store.embedded.backup import restore
from miniq.store.embedded.kv import Op
from tests.kit import drain, send
from tests.store.parts import opened, store_in

REASON = "was removed, renamed or replaced while this process had it open"
EMBEDDED = """
import sys, miniq

with miniq.connect(sys.argv[1]) as mq:
    queue = mq.queue("q")
    print(queue.send("kept"), flush=True)
    sys.stdin.readline()
    try:
        for _ in queue.receive(wait=30, max=1, visibility_timeout=0.001):
            while True:
                queue.send("x")
    except miniq.errors.StoreFailed as error:
        print(error, flush=True)
    for call in (queue.receive, lambda: queue.send("x"), queue.purge):
        try:
            call()
        except miniq.errors.StoreFailed:
            print("refused", flush=True)
print("closed", flush=True)
"""


def remove(folder: Path, backup: Path) -> None:
    shutil.rmtree(folder)


def rename(folder: Path, backup: Path) -> None:
    folder.rename(folder.with_name("moved"))


def replace(folder: Path, backup: Path) -> None:
    rename(folder, backup)
    restore(str(backup), str(folder))


def remove_and_restore(folder: Path, backup: Path) -> None:
    remove(folder, backup)
    restore(str(backup), str(folder))


def empty_the_database(folder: Path, backup: Path) -> None:
    for path in (folder / "data").iterdir():
        path.unlink()


Event = Callable[[Path, Path], None]
EVENTS = (remove, rename, replace, remove_and_restore, empty_the_database)


@pytest.fixture
def backup(url: str, tmp_path: Path) -> Path:
    """A backup with one message, of the store in the folder, which is then empty."""
    path = tmp_path / "backup"
    with miniq.connect(url) as mq:
        mq.queue("q").send("backed up")
        mq.backup(str(path))
        mq.queue("q").purge()
    return path


@contextlib.contextmanager
def server_on(url: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server and its URL; its log is on stderr."""
    command = [sys.executable, "-m", "miniq", "serve", "--store", url, "--port", "0", "--no-zmq"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().split()[2]
        finally:
            process.kill()


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def send_until_refused(url: str) -> int:
    """The number of sends that are confirmed until one is refused."""
    confirmed = 0
    with miniq.connect(url, retry=0) as mq, contextlib.suppress(MiniQError, OSError):
        while True:
            mq.queue("q").send("late")
            confirmed += 1
    return confirmed


def bodies_in(url: str) -> list[object]:
    """The bodies of all messages in the queue."""
    found: list[object] = []
    with miniq.connect(url) as mq:
        while messages := mq.queue("q").receive(max=1000):
            found += [message.body for message in messages]
    return found


@pytest.mark.timeout(90)
@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.__name__)
def test_a_server_whose_folder_is_gone_or_another_one_fails_for_good_and_touches_nothing(
    event: Event, url: str, folder: Path, backup: Path
) -> None:
    with server_on(url) as (process, http):
        with miniq.connect(http) as mq:
            mq.queue("q").send("confirmed")
        event(folder, backup)
        after = files(folder) if folder.exists() else {}
        late = send_until_refused(http)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "Traceback" not in err
    assert REASON in err
    assert "CRITICAL" in err
    found = files(folder) if folder.exists() else {}
    if event is empty_the_database:  # the log is still its own, and has what was confirmed meanwhile
        found, after = ({name: raw for name, raw in left.items() if "log/" not in name} for left in (found, after))
    assert found == after
    moved = folder.with_name("moved")
    if moved.exists():  # nothing that was confirmed is lost: it went to the renamed files
        assert bodies_in(url.replace(str(folder), str(moved))) == ["confirmed"] + ["late"] * late
    if event in (replace, remove_and_restore):
        assert bodies_in(url) == ["backed up"]


@pytest.mark.timeout(60)
def test_readiness_turns_red_as_soon_as_it_is_asked_for(url: str, folder: Path) -> None:
    with server_on(url) as (process, http):
        assert urllib.request.urlopen(f"{http}/ready", timeout=30).status == 200  # noqa: S310
        os.kill(process.pid, signal.SIGSTOP)  # so that it cannot notice by itself before it is asked
        folder.rename(folder.with_name("moved"))
        os.kill(process.pid, signal.SIGCONT)
        with pytest.raises((OSError, HTTPException)) as caught:
            urllib.request.urlopen(f"{http}/ready", timeout=30)  # noqa: S310
        if isinstance(caught.value, urllib.error.HTTPError):  # else it noticed even sooner, and has ended
            assert caught.value.code == 503
            assert REASON in caught.value.read().decode()
        assert process.wait(30) == 1
        process.communicate()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("event", [remove, replace], ids=lambda event: event.__name__)
def test_an_embedded_client_whose_folder_is_gone_is_refused_and_ends_cleanly(
    event: Event, url: str, folder: Path, backup: Path
) -> None:
    command = [sys.executable, "-c", EMBEDDED, url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline()
            event(folder, backup)
            after = files(folder) if folder.exists() else {}
            out, _ = process.communicate("go\n", timeout=50)
        finally:
            process.kill()
    first, *rest = out.splitlines()
    assert REASON in first
    assert rest == ["refused"] * 3 + ["closed"]
    assert process.returncode == 0
    assert (files(folder) if folder.exists() else {}) == after


async def test_a_write_that_runs_while_the_folder_is_found_gone_is_not_confirmed(url: str, folder: Path) -> None:
    async with store_in(url, "q") as store:
        commit = store._commit
        write = commit._write

        def write_late(ops: Sequence[Op], sync: bool) -> None:
            write(ops, sync)
            folder.rename(folder.with_name("moved"))
            assert isinstance(store.failure(), StoreFailed)

        commit._write = write_late
        with pytest.raises(StoreFailed, match=REASON):
            await store.save_record("kind", "name", b"value")


async def test_a_store_that_is_closed_before_anyone_noticed_says_so(url: str, folder: Path) -> None:
    moved = folder.with_name("moved")
    async with opened(url) as broker:
        await send(broker, "q", 1)
        folder.rename(moved)
        with pytest.raises(StoreFailed, match=REASON):
            await broker.close()
    async with opened(url.replace(str(folder), str(moved))) as broker:
        assert await drain(broker, "q") == [1]
