"""The folder: one process at a time, one format, one engine, and hands off everything else."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from miniq.errors import StoreError, StoreFailed, StoreFormat, StoreLocked
from miniq.message import QueueSettings
from miniq.store import open_store
from miniq.store.embedded import keys
from tests.kit import drain, leases, send
from tests.store.parts import opened

HOLDER = """
import asyncio, sys
from miniq.store import open_store

async def main():
    store = open_store(sys.argv[1])
    try:
        await store.open()
    except Exception as error:
        print(type(error).__name__, error, flush=True)
        return
    print("open", flush=True)
    sys.stdin.readline()
    await store.close()

asyncio.run(main())
"""


@contextmanager
def process_on(url: str) -> Iterator[subprocess.Popen[str]]:
    """Another process that opens the store and keeps it until its input ends."""
    command = [sys.executable, "-c", HOLDER, url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


async def refused(url: str, kind: type[StoreError]) -> str:
    """Try to open; the text of the refusal."""
    store = open_store(url)
    with pytest.raises(kind) as caught:
        await store.open()
    await store.close()
    return caught.value.text


async def test_second_process_is_refused_at_once_and_told_who_holds_the_folder(url: str, folder: Path) -> None:
    async with opened(url) as broker:
        before = contents(folder)["LOCK"]
        with process_on(url) as other:
            text = said(other)
        assert text.startswith("StoreLocked")
        assert f"process {os.getpid()}" in text
        assert str(folder) in text
        assert contents(folder)["LOCK"] == before
        await send(broker, "default", "still works")
        assert await drain(broker, "default") == ["still works"]


@pytest.mark.timeout(60)
async def test_a_folder_that_another_process_holds_is_refused_without_waiting_for_that_process(url: str) -> None:
    with process_on(url) as holder:
        assert said(holder) == "open"
        assert f"process {holder.pid}" in await refused(url, StoreLocked)
        assert holder.poll() is None


async def test_second_open_in_the_same_process_is_refused_and_leaves_the_first_alone(url: str) -> None:
    async with opened(url) as broker:
        assert f"process {os.getpid()}" in await refused(url, StoreLocked)
        assert f"process {os.getpid()}" in await refused(url, StoreLocked)
        await send(broker, "default", 1)
    async with opened(url) as broker:
        assert await drain(broker, "default") == [1]


async def test_closed_folder_can_be_opened_by_another_process(url: str) -> None:
    async with opened(url):
        pass
    with process_on(url) as other:
        assert said(other) == "open"


async def test_folder_of_a_killed_process_can_be_opened(url: str) -> None:
    with process_on(url) as holder:
        assert said(holder) == "open"
        await refused(url, StoreLocked)
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        async with opened(url) as broker:
            await send(broker, "default", 1)


async def test_close_may_be_repeated_and_does_not_free_the_lock_of_another(url: str) -> None:
    store = open_store(url)
    await store.open()
    await store.close()
    async with opened(url):
        await store.close()
        await refused(url, StoreLocked)


async def test_unknown_format_is_refused_and_nothing_is_touched(url: str, folder: Path) -> None:
    async with opened(url) as broker:
        await send(broker, "default", 1)
    marker = json.loads((folder / "MINIQ").read_text())
    (folder / "MINIQ").write_text(json.dumps(marker | {"format": 99}))
    before = contents(folder)
    text = await refused(url, StoreFormat)
    assert "format 99" in text
    assert "this version of MiniQ knows 1" in text
    assert contents(folder) == before
    (folder / "MINIQ").write_text(json.dumps(marker))
    async with opened(url) as broker:
        assert await drain(broker, "default") == [1]


async def test_wrong_engine_is_refused_with_the_url_that_would_be_right(url: str, folder: Path, engine: str) -> None:
    async with opened(url):
        pass
    other = "leveldb" if engine == "rocksdb" else "rocksdb"
    before = contents(folder)
    text = await refused(f"{other}:{folder}", StoreFormat)
    assert f"{engine}:{folder}" in text
    assert contents(folder) == before


@pytest.mark.parametrize("name", ["notes.txt", "LOCK.txt", "data"])
async def test_folder_with_other_things_in_it_is_refused_and_nothing_is_added(
    url: str, folder: Path, name: str
) -> None:
    folder.mkdir()
    (folder / name).write_text("mine")
    text = await refused(url, StoreFormat)
    assert "not a MiniQ folder" in text
    assert repr(name) in text
    assert contents(folder) == {name: b"mine"}
    assert [path.name for path in folder.iterdir()] == [name]


async def test_the_lock_file_of_another_program_is_not_written_to(url: str, folder: Path) -> None:
    # A bare RocksDB or LevelDB folder has a file of this name too.
    folder.mkdir()
    (folder / "LOCK").write_text("not yours")
    (folder / "CURRENT").write_text("MANIFEST-000001\n")
    await refused(url, StoreFormat)
    assert contents(folder) == {"LOCK": b"not yours", "CURRENT": b"MANIFEST-000001\n"}


@pytest.mark.parametrize(
    "marker", [b"", b"{", b"\xff\xfe", b"[]", b"1", b"{}", b'{"format": 1}', b'{"format": true, "engine": "x"}']
)
async def test_marker_that_makes_no_sense_is_refused(url: str, folder: Path, marker: bytes) -> None:
    folder.mkdir()
    (folder / "MINIQ").write_bytes(marker)
    text = await refused(url, StoreFormat)
    assert "MINIQ" in text
    assert contents(folder) == {"MINIQ": marker}


async def test_marker_that_cannot_be_read_is_refused(url: str, folder: Path) -> None:
    (folder / "MINIQ").mkdir(parents=True)
    assert "MINIQ" in await refused(url, StoreFormat)


async def test_path_that_is_a_file_is_refused_with_its_name(url: str, folder: Path) -> None:
    folder.write_text("a file")
    assert str(folder) in await refused(url, StoreError)
    assert folder.read_text() == "a file"


async def test_start_that_was_cut_off_before_the_marker_was_written_is_taken_up(url: str, folder: Path) -> None:
    folder.mkdir()
    (folder / "LOCK").write_text("12345\n")
    (folder / "MINIQ.new").write_text("")
    async with opened(url) as broker:
        await send(broker, "default", 1)
        assert await drain(broker, "default") == [1]


async def test_refused_folder_is_not_left_locked(url: str, folder: Path) -> None:
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    await refused(url, StoreFormat)
    (folder / "notes.txt").unlink()
    async with opened(url):
        pass


async def test_a_close_that_fails_gives_the_lock_back(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(kv: object) -> None:
        close(kv)
        raise StoreFailed("store: no space")

    store = open_store(url)
    await store.open()
    kind = type(store._kv)  # type: ignore[attr-defined]
    close = kind.close
    with monkeypatch.context() as patch:
        patch.setattr(kind, "close", fail)
        with pytest.raises(StoreFailed):
            await store.close()
    async with opened(url):
        pass


async def test_a_folder_of_the_first_format_is_opened_with_its_settings_and_refused_by_that_version_afterwards(
    url: str, folder: Path
) -> None:
    """States, dead letters and settings as version 0.1 wrote them: without errors, and without `retry`."""
    async with opened(url) as broker:
        await broker.configure("q", {"max_receives": 1})
        await send(broker, "q", "dies")
        await broker.release("q", leases(await broker.receive("q")))
        await broker.configure("q", {"max_receives": None})
        await send(broker, "q", "leased")
        (held,) = await broker.receive("q", visibility_timeout=600)
        kv = broker.store._kv  # type: ignore[attr-defined]
        ops: list[tuple[bytes, bytes | None]] = []
        for kind in (b"q", b"s", b"b"):
            for key, value in kv.scan(kind, keys.after(kind)):
                record = msgspec.msgpack.decode(value)
                if kind == b"q":
                    del record[2]["retry"]
                elif kind == b"s":
                    assert record.pop() == 0
                elif record[0] == 1:  # a mixed block, of the dead letter
                    assert record[1][0][13].pop() is None
                ops.append((key, msgspec.msgpack.encode(record)))
        kv.write(ops, True)
    marker = json.loads((folder / "MINIQ").read_text())
    (folder / "MINIQ").write_text(json.dumps(marker | {"format": 1, "restored": "ab"}))
    async with opened(url) as broker:
        assert broker.store_id.endswith(".ab")
        assert (await broker.queue("q")).settings == QueueSettings(max_receives=None)
        assert await broker.ack("q", leases([held])) == ["done"]
        (dead,) = (await broker.peek("q.dead")).messages
        assert dead.message.dead is not None
        assert (dead.message.dead.reason, dead.message.dead.error) == ("max_receives", None)
    raised = json.loads((folder / "MINIQ").read_text())
    assert (raised["format"], raised["restored"]) == (keys.FORMAT, "ab"), "that it was restored is still known"


async def test_a_folder_that_is_closed_leaves_no_file_open(url: str, folder: Path) -> None:
    def files() -> list[str]:
        links = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
        return sorted(path for link in links if os.path.lexists(link) and str(folder) in (path := os.readlink(link)))

    for _ in range(2):
        async with opened(url) as broker:
            await send(broker, "default", 1)
    assert files() == []
