"""Backup while work goes on, and restore into a new folder."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import shutil
import threading
from pathlib import Path
from typing import cast

import pytest

from miniq.errors import InvalidRequest, MiniQError, NoSpace, StoreCorrupt, StoreFormat, StoreLocked
from miniq.message import Draft
from miniq.store.embedded import backup as backups
from miniq.store.embedded.backup import restore
from miniq.store.embedded.check import check
from miniq.store.embedded.kv import KV
from miniq.store.embedded.store import EmbeddedStore
from tests.clock import FrozenClock
from tests.kit import bodies, drain, ids, leases, send, states
from tests.store.parts import opened


async def test_backup_taken_under_load_has_everything_that_was_confirmed_before_it(
    url: str, tmp_path: Path, engine: str
) -> None:
    clock = FrozenClock()
    sent: list[str] = []
    acked: list[str] = []
    async with opened(url, clock) as broker:
        await broker.configure("q", {"history": "events"})
        stop = False

        async def sender() -> None:
            while not stop:
                sent.extend(await broker.send("q", [Draft(b"1") for _ in range(5)]))

        async def acker() -> None:
            while not stop:
                got = await broker.receive("q", max=2)
                if got:
                    await broker.ack("q", leases(got))
                    acked.extend(ids(got))
                await asyncio.sleep(0)

        tasks = [asyncio.create_task(job) for job in (sender(), sender(), acker(), acker())]
        while len(acked) < 50:  # noqa: ASYNC110
            await asyncio.sleep(0)
        confirmed, gone = list(sent), list(acked)
        await broker.backup(str(tmp_path / "backup"))
        after_sent, after_gone = set(sent), set(acked)
        while len(sent) < len(after_sent) + 20:  # noqa: ASYNC110
            await asyncio.sleep(0)
        stop = True
        await asyncio.gather(*tasks)
    assert restore(str(tmp_path / "backup"), str(tmp_path / "restored")) == f"{engine}:{tmp_path / 'restored'}"
    clock.advance(3600)
    async with opened(f"{engine}:{tmp_path / 'restored'}", clock) as broker:
        assert (await broker.queue("q")).settings.history == "events"
        found: set[str] = set()
        while got := await broker.receive("q", max=1000):
            found |= set(ids(got))
            await broker.ack("q", leases(got))
        assert not found & set(gone)
        assert set(confirmed) - found <= set(sent) - set(confirmed) | after_gone
        assert set(confirmed) - set(acked) <= found
        assert await states(broker, "q") == (0, 0, 0)
    # The original knows nothing of that.
    async with opened(url, clock) as broker:
        counts = (await broker.queue("q")).counts
        assert counts.total == len(sent) - len(acked)


async def test_restored_store_is_the_same_in_every_respect(url: str, tmp_path: Path) -> None:
    clock = FrozenClock()
    async with opened(url, clock) as broker:
        await broker.configure("q", {"history": "full", "max_receives": 3})
        await send(broker, "q", *range(10))
        await send(broker, "q", "later", delay=60)
        await send(broker, "q", "g0", "g1", group="g")
        dup = await send(broker, "q", "d", dedup_id="d")
        held = await broker.receive("q", max=3)
        await broker.ack("q", leases(held[:1]))
        await broker.backup(str(tmp_path / "backup"))
        queues = await broker.queues()
        history = (await broker.history(limit=1000)).records
    restored = restore(str(tmp_path / "backup"), str(tmp_path / "new" / "place"))
    async with opened(restored, clock) as broker:
        assert await broker.queues() == queues
        assert (await broker.history(limit=1000)).records == history
        assert await send(broker, "q", "d", dedup_id="d") == dup
        assert await broker.ack("q", leases(held[1:])) == ["done", "done"]
        assert bodies(await broker.receive("q", max=100)) == [3, 4, 5, 6, 7, 8, 9, "g0", "d"]


async def test_backup_can_be_restored_twice_and_stays_as_it_was(url: str, tmp_path: Path) -> None:
    async with opened(url) as broker:
        await send(broker, "q", *range(3))
        await broker.backup(str(tmp_path / "backup"))
    for number in range(2):
        restored = restore(str(tmp_path / "backup"), str(tmp_path / f"restored-{number}"))
        async with opened(restored) as broker:
            assert await drain(broker, "q") == [0, 1, 2]


async def test_a_restored_store_has_an_id_of_its_own_that_tells_where_it_came_from(url: str, tmp_path: Path) -> None:
    backup = str(tmp_path / "backup")
    async with opened(url) as broker:
        id = broker.store_id
        await broker.backup(backup)
    found: list[str] = []
    for name in ("one", "two"):
        place = restore(backup, str(tmp_path / name))
        for _ in range(2):
            async with opened(place) as broker:
                found.append(broker.store_id)
    assert found[0] == found[1]
    assert found[2] == found[3] != found[0]
    assert {other.partition(".")[0] for other in found} == {id}
    assert id not in found


async def test_backup_into_something_that_exists_is_refused(url: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("mine")
    async with opened(url) as broker:
        for name in ("folder", "file", "file/below"):
            with pytest.raises(InvalidRequest) as caught:
                await broker.backup(str(tmp_path / name))
            assert name in caught.value.text
        assert (tmp_path / "file").read_text() == "mine"
        assert list((tmp_path / "folder").iterdir()) == []
        await send(broker, "q", "goes on")
        assert await drain(broker, "q") == ["goes on"]


async def test_one_of_several_backups_to_the_same_path_is_made_and_the_others_are_refused(
    url: str, tmp_path: Path
) -> None:
    async with opened(url) as broker:
        await send(broker, "q", *range(3))
        calls = [broker.backup(str(tmp_path / "backup")) for _ in range(4)]
        answers = await asyncio.gather(*calls, return_exceptions=True)
    refused = [answer for answer in answers if answer is not None]
    assert len(refused) == 3
    assert all(isinstance(error, InvalidRequest) and "exists" in error.text for error in refused), refused
    assert check(str(tmp_path / "backup")).damage == []
    assert list(tmp_path.glob("*.part")) == []


async def test_a_backup_removes_what_a_killed_one_left_but_not_what_another_is_writing(
    url: str, tmp_path: Path
) -> None:
    stale, running = tmp_path / "backup.01234567.part", tmp_path / "backup.89abcdef.part"
    others = [tmp_path / name for name in ("backup2.01234567.part", "backup.mine.part", "backup.old")]
    for folder in (stale, running, *others):
        (folder / "data").mkdir(parents=True)
    lock = os.open(running, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        async with opened(url) as broker:
            await broker.backup(str(tmp_path / "backup"))
    finally:
        os.close(lock)
    assert not stale.exists()
    assert all((folder / "data").is_dir() for folder in (running, *others))


async def test_a_url_is_no_path_of_a_backup(url: str, tmp_path: Path) -> None:
    async with opened(url) as broker:
        for path in ("rocksdb:x", "memory:", "http://h/x", "postgresql://u:secret@h/d"):
            with pytest.raises(InvalidRequest, match="is a URL") as caught:
                await broker.backup(path)
            assert "secret" not in caught.value.text


async def test_restore_into_something_that_exists_is_refused(url: str, tmp_path: Path) -> None:
    async with opened(url) as broker:
        await broker.backup(str(tmp_path / "backup"))
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "notes").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for name in ("folder", "file"):
        with pytest.raises(InvalidRequest, match=name):
            restore(str(tmp_path / "backup"), str(tmp_path / name))
    assert [path.name for path in (tmp_path / "folder").iterdir()] == ["notes"]


async def test_restore_into_an_empty_folder_is_fine(url: str, tmp_path: Path) -> None:
    async with opened(url) as broker:
        await send(broker, "q", 1)
        await broker.backup(str(tmp_path / "backup"))
    (tmp_path / "empty").mkdir()
    async with opened(restore(str(tmp_path / "backup"), str(tmp_path / "empty"))) as broker:
        assert await drain(broker, "q") == [1]


async def test_incomplete_backup_is_refused(url: str, tmp_path: Path) -> None:
    async with opened(url) as broker:
        await broker.backup(str(tmp_path / "backup"))
    shutil.copytree(tmp_path / "backup", tmp_path / "no-data")
    shutil.rmtree(tmp_path / "no-data" / "data")
    (tmp_path / "backup" / "MINIQ").unlink()
    for name in ("backup", "no-data", "nothing"):
        with pytest.raises(InvalidRequest, match="not a complete MiniQ backup"):
            restore(str(tmp_path / name), str(tmp_path / "restored"))
        assert not (tmp_path / "restored").exists()


async def test_backup_in_an_unknown_format_is_refused(url: str, tmp_path: Path) -> None:
    async with opened(url) as broker:
        await broker.backup(str(tmp_path / "backup"))
    for marker in ("{", '{"format": 99, "engine": "rocksdb"}'):
        (tmp_path / "backup" / "MINIQ").write_text(marker)
        with pytest.raises(StoreFormat):
            restore(str(tmp_path / "backup"), str(tmp_path / "restored"))
        assert not (tmp_path / "restored").exists()


async def test_sends_and_acks_are_confirmed_while_a_large_backup_runs(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds = 0
    enough = threading.Event()

    async with opened(url) as broker:
        kv = cast(EmbeddedStore, broker.store)._kv
        checkpoint = type(kv).checkpoint

        def late_checkpoint(self: KV, path: str) -> None:
            assert enough.wait(60), "no call was confirmed while the backup ran"
            checkpoint(self, path)

        monkeypatch.setattr(type(kv), "checkpoint", late_checkpoint)
        for _ in range(40):
            await broker.send("bulk", [Draft(b"x" * 2000) for _ in range(500)])
        await send(broker, "q", *range(100))
        backup = asyncio.create_task(broker.backup(str(tmp_path / "backup")))

        async def worker() -> None:
            nonlocal rounds
            while not backup.done():
                await send(broker, "q", "x")
                got = await broker.receive("q")
                assert await broker.ack("q", leases(got)) == ["done"]
                rounds += 1
                if rounds == 30:
                    enough.set()

        await asyncio.gather(worker(), worker(), worker())
        await backup
    assert rounds >= 30
    async with opened(restore(str(tmp_path / "backup"), str(tmp_path / "restored"))) as broker:
        assert (await broker.queue("bulk")).counts.total == 20_000


async def test_two_backups_at_once_are_both_whole(url: str, tmp_path: Path) -> None:
    async with opened(url) as broker:
        await send(broker, "q", *range(5))
        await asyncio.gather(broker.backup(str(tmp_path / "a")), broker.backup(str(tmp_path / "b")))
    for name in ("a", "b"):
        async with opened(restore(str(tmp_path / name), str(tmp_path / f"{name}-restored"))) as broker:
            assert await drain(broker, "q") == [0, 1, 2, 3, 4]


async def test_close_waits_for_a_backup_that_runs(url: str, tmp_path: Path) -> None:
    async with opened(url) as broker:
        for _ in range(10):
            await broker.send("bulk", [Draft(b"x" * 2000) for _ in range(500)])
        backup = asyncio.create_task(broker.backup(str(tmp_path / "backup")))
        await asyncio.sleep(0.01)
    end = (await asyncio.gather(backup, return_exceptions=True))[0]
    if end is None:
        async with opened(restore(str(tmp_path / "backup"), str(tmp_path / "restored"))) as broker:
            assert (await broker.queue("bulk")).counts.total == 5000
    else:
        assert isinstance(end, MiniQError)
        with pytest.raises(InvalidRequest):
            restore(str(tmp_path / "backup"), str(tmp_path / "restored"))


# Verified


@pytest.fixture
async def made(url: str, tmp_path: Path) -> Path:
    """A backup with three messages."""
    async with opened(url) as broker:
        await send(broker, "q", *range(3))
        await broker.backup(str(tmp_path / "backup"))
    return tmp_path / "backup"


@pytest.mark.parametrize("how", ["flip", "cut", "missing"])
async def test_backup_with_a_damaged_file_is_refused_by_name(made: Path, tmp_path: Path, how: str) -> None:
    for path in filter(backups.is_needed, sorted((made / "data").iterdir())):
        raw = path.read_bytes()
        if not raw and how != "missing":
            continue
        if how == "missing":
            path.unlink()
        else:
            path.write_bytes(raw[:-1] if how == "cut" else bytes([raw[0] ^ 1]) + raw[1:])
        with pytest.raises(StoreCorrupt) as caught:
            restore(str(made), str(tmp_path / "restored"))
        assert str(path) in caught.value.text
        assert not (tmp_path / "restored").exists()
        path.write_bytes(raw)
    async with opened(restore(str(made), str(tmp_path / "restored"))) as broker:
        assert await drain(broker, "q") == [0, 1, 2]


async def test_copy_that_differs_from_the_backup_is_refused_and_removed(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = shutil.copytree

    def torn(source: str, target: str) -> None:
        real(source, target)
        (Path(target) / "CURRENT").write_bytes(b"")

    monkeypatch.setattr(backups.shutil, "copytree", torn)
    with pytest.raises(StoreCorrupt, match="CURRENT"):
        restore(str(made), str(tmp_path / "restored"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["backup", "queue"]


async def test_backup_of_an_older_version_is_restored_and_the_log_says_that_it_was_not_verified(
    made: Path, engine: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (made / "MINIQ").write_text(f'{{"format": 1, "engine": "{engine}"}}\n')
    (made / "data" / "EXTENT").unlink()
    async with opened(restore(str(made), str(tmp_path / "restored"))) as broker:
        assert await drain(broker, "q") == [0, 1, 2]
    assert "is the folder of a store, or a backup that an older version made" in caplog.text


async def test_restoring_from_a_folder_that_is_in_use_is_refused(url: str, folder: Path, tmp_path: Path) -> None:
    async with opened(url):
        with pytest.raises(StoreLocked, match=f"open in process {os.getpid()}"):
            restore(str(folder), str(tmp_path / "restored"))
    assert not (tmp_path / "restored").exists()
    restore(str(folder), str(tmp_path / "restored"))


async def test_failed_backup_leaves_nothing_and_no_space_names_the_target(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(url) as broker:
        await send(broker, "q", 1)
        with monkeypatch.context() as patched:

            def full(path: int) -> None:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

            patched.setattr(backups, "_sync_tree", full)
            with pytest.raises(NoSpace) as caught:
                await broker.backup(str(tmp_path / "backup"))
            assert f"no space left on the disk of {tmp_path / 'backup'}" in caught.value.text
        assert [path.name for path in tmp_path.iterdir()] == ["queue"]
        await broker.backup(str(tmp_path / "backup"))
    async with opened(restore(str(tmp_path / "backup"), str(tmp_path / "restored"))) as broker:
        assert await drain(broker, "q") == [1]


async def test_a_backup_is_not_opened_as_a_store_and_stays_one(made: Path, engine: str) -> None:
    before = {path: path.read_bytes() for path in made.rglob("*") if path.is_file()}
    with pytest.raises(StoreFormat, match=rf"{made} is a backup; .*`miniq restore {made} NEWFOLDER`"):
        async with opened(f"{engine}:{made}"):
            pass
    assert {path: path.read_bytes() for path in made.rglob("*") if path.is_file()} == before
    assert check(str(made)).kind == "backup"


async def test_a_backup_is_written_only_where_a_folder_is_and_outside_of_its_source(
    made: Path, url: str, folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(folder)
    for path in (folder / "inside", folder / "data" / "inside", tmp_path / "link" / "inside"):
        async with opened(url) as broker:
            with pytest.raises(InvalidRequest, match=f"path: cannot make '{path}': it is inside {folder}; name a new"):
                await broker.backup(str(path))
    async with opened(url) as broker:
        missing = tmp_path / "typo"
        with pytest.raises(InvalidRequest, match=f"path: .*: there is no folder '{missing}'; create it"):
            await broker.backup(str(missing / "monday"))
    with pytest.raises(InvalidRequest, match=f"folder: cannot make '{made}/r': it is inside {made}; name a new"):
        restore(str(made), str(made / "r"))
    assert not missing.exists()
    assert not list(tmp_path.rglob("*.part"))
    assert not (made / "r").exists()
