"""Folders that were written before there was a commit log: their engines had logs of their own."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from miniq.errors import StoreCorrupt, StoreFormat
from miniq.store.embedded import extent, folder, manifest
from miniq.store.embedded.check import check
from tests.kit import bodies, send
from tests.store.parts import copy_as_after_kill, opened

WRITE = """
import json, os, sys
data, pairs, recycled = sys.argv[1], json.load(open(sys.argv[2])), sys.argv[3] == "rocksdb"
if recycled:
    import rocksdict as rd
    options = rd.Options(raw_mode=True)
    options.set_recycle_log_file_num(3)
    database = rd.Rdict(data, options, {"default": options})
    sync = rd.WriteOptions()
    sync.sync = True
    for key, value in pairs:
        batch = rd.WriteBatch(raw_mode=True)
        batch.delete(bytes.fromhex(key)) if value is None else batch.put(bytes.fromhex(key), bytes.fromhex(value))
        database.write(batch, sync)
    print(database.latest_sequence_number() - len(pairs), database.latest_sequence_number())
else:
    import plyvel
    database = plyvel.DB(data)
    for key, value in pairs:
        with database.write_batch(sync=True) as batch:
            batch.delete(bytes.fromhex(key)) if value is None else batch.put(bytes.fromhex(key), bytes.fromhex(value))
    print(0, 0)
sys.stdout.flush()
os._exit(0)
"""
"""Writes as the earlier version did, and ends as if killed."""


def records(engine: str, data: Path) -> dict[str, str]:
    """All keys and values of a database that nobody has open, but for the number of its newest change."""
    read = """
import json, sys
if sys.argv[2] == "rocksdb":
    import rocksdict as rd
    options = rd.Options(raw_mode=True)
    pairs = list(rd.Rdict(sys.argv[1], options, {"default": options}, rd.AccessType.read_only()).items())
else:
    import plyvel
    pairs = list(plyvel.DB(sys.argv[1]))
print(json.dumps({key.hex(): value.hex() for key, value in pairs if key != b"a"}))
"""
    run = subprocess.run([sys.executable, "-c", read, str(data), engine], capture_output=True, text=True, check=True)
    return dict(json.loads(run.stdout))


def make_old(path: Path, engine: str) -> None:
    """Let a folder that was closed be one of the earlier version."""
    shutil.rmtree(path / "log")
    (path / "data" / extent.NAME).unlink()
    folder.write_marker(str(path), folder.Marker(3, engine, used=True))


@pytest.fixture
async def old(url: str, engine: str, folder: Path) -> Path:
    """A folder as a killed broker of the earlier version left it: ten messages in tables, five in its log."""
    async with opened(url) as broker:
        await send(broker, "default", *range(10))
    less = folder.with_name("less")
    shutil.copytree(folder, less)
    async with opened(url) as broker:
        for number in range(10, 15):
            await send(broker, "default", number)
    before, after = records(engine, less / "data"), records(engine, folder / "data")
    changes = [(key, after.get(key)) for key in {*before, *after} if before.get(key) != after.get(key)]
    make_old(less, engine)
    listed = folder.with_name("changes")
    listed.write_text(json.dumps(changes))
    command = [sys.executable, "-c", WRITE, str(less / "data"), str(listed), engine]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    base, last = map(int, run.stdout.split())
    number = manifest.current(str(less / "data"))
    assert number is not None
    (log,) = manifest.logs_of(str(less / "data")).items()
    raw = Path(manifest.manifest_path(str(less / "data"), number)).read_bytes()
    if engine == "rocksdb":
        reach = extent.Reach(0, last, last)
    else:
        size = Path(log[1]).stat().st_size
        reach = extent.Reach(log[0], size, size, 0, 0)
    note = extent.Note(extent.boot_id(), number, len(raw), extent.crc32(raw), base, reach)
    (less / "data" / extent.NAME).write_bytes(extent.encode(note))
    shutil.rmtree(folder)
    return less


async def test_it_is_converted_with_all_that_its_log_has(old: Path, engine: str) -> None:
    for _ in range(2):
        async with opened(f"{engine}:{old}") as broker:
            assert (await broker.queue("default")).counts.total == 15
    marker = json.loads((old / "MINIQ").read_bytes())
    assert (marker["format"], marker["used"], len(marker["log"])) == (4, True, 16)
    async with opened(f"{engine}:{old}") as broker:
        assert sorted(map(int, bodies(await broker.receive("default", max=100)))) == list(range(15))
        more = old.with_name("more")
        await send(broker, "default", "more")
        copy_as_after_kill(old, more)
    async with opened(f"{engine}:{more}") as broker:
        assert (await broker.queue("default")).counts.total == 16


async def test_damage_in_its_log_is_refused_before_it_is_converted(old: Path, engine: str) -> None:
    log = max((old / "data").glob("*.log"), key=lambda path: path.stat().st_size)
    raw = log.read_bytes()
    end = len(raw.rstrip(b"\0"))
    files = {path.name for path in old.rglob("*")}
    for at in range(0, end, max(1, end // 20)):
        damaged = bytearray(raw)
        damaged[at] ^= 16
        log.write_bytes(damaged)
        with pytest.raises(StoreCorrupt):
            async with opened(f"{engine}:{old}"):
                pass
    assert files <= {path.name for path in old.rglob("*")}
    log.write_bytes(raw)
    async with opened(f"{engine}:{old}") as broker:
        assert (await broker.queue("default")).counts.total == 15


async def test_a_conversion_that_was_interrupted_is_done_again(old: Path, engine: str) -> None:
    """Everything but the marker was written."""
    marker = (old / "MINIQ").read_bytes()
    async with opened(f"{engine}:{old}"):
        copy = old.with_name("copy")
        copy_as_after_kill(old, copy)
    (copy / "MINIQ").write_bytes(marker)
    async with opened(f"{engine}:{copy}") as broker:
        assert (await broker.queue("default")).counts.total == 15


def test_it_can_be_checked_before_it_is_converted(old: Path, engine: str) -> None:
    report = check(str(old))
    assert (report.damage, report.records > 0) == ([], True)
    assert [(queue.name, queue.messages) for queue in report.queues] == [("default", 15)]
    assert json.loads((old / "MINIQ").read_bytes())["format"] == 3


async def test_a_folder_of_a_later_version_is_refused_in_words(url: str, engine: str, folder: Path) -> None:
    async with opened(url):
        pass
    marker = json.loads((folder / "MINIQ").read_bytes())
    (folder / "MINIQ").write_text(json.dumps(marker | {"format": 5}))
    with pytest.raises(StoreFormat, match=r"has format 5, this version of MiniQ knows 1 to 4; use the version"):
        async with opened(url):
            pass
