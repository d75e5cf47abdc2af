"""Damage to the files of a closed folder: it is refused before anything is changed, or costs nothing."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import shutil
from collections import Counter
from pathlib import Path
from typing import cast

import pytest

from miniq.errors import StoreCorrupt, StoreError
from miniq.message import Draft
from miniq.store import open_store
from miniq.store.embedded import engine as engines
from miniq.store.embedded import extent, keys, logged, manifest
from miniq.store.embedded.backup import restore
from miniq.store.embedded.check import check
from miniq.store.embedded.folder import Folder
from miniq.store.embedded.store import EmbeddedStore
from miniq.store.embedded.verify import verify
from miniq.store.embedded.wal import _fragments
from tests.faults import damage
from tests.faults.damage import Damage
from tests.store.parts import copy_as_after_kill, opened


async def refusal(engine: str, folder: Path) -> str:
    store = open_store(f"{engine}:{folder}")
    with pytest.raises(StoreCorrupt) as caught:
        await store.open()
    await store.close()
    return caught.value.text


async def total(engine: str, folder: Path) -> int:
    async with opened(f"{engine}:{folder}") as broker:
        return (await broker.queue("default")).counts.total


def tables_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.suffix in (".sst", ".ldb"))


@pytest.fixture
async def killed(url: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder as a kill leaves it, with 320 messages in three tables and a log."""
    monkeypatch.setattr(engines, "MIB", 1024 if url.startswith("rocksdb") else 2048)
    copy = folder.with_name("killed")
    async with opened(url) as broker:
        for _ in range(32):
            await broker.send("default", [Draft(os.urandom(700), "application/x-noise") for _ in range(10)])
        while len(tables_in(folder)) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        copy_as_after_kill(folder, copy)
        while not is_noted(copy):  # the engine has added a table since the last write
            await broker.store.save_record("test", "any", b"")
            shutil.rmtree(copy)
            copy_as_after_kill(folder, copy)
    return copy


def is_noted(folder: Path) -> bool:
    """Whether the list of tables is no longer than it was noted."""
    note = extent.read(str(folder / "data"))
    return note is not None and manifest_of(folder).stat().st_size == note.length


def manifest_of(folder: Path) -> Path:
    number = manifest.current(str(folder / "data"))
    assert number is not None
    return Path(manifest.manifest_path(str(folder / "data"), number))


async def test_manifest_that_was_cut_is_refused_and_no_table_is_removed(engine: str, killed: Path) -> None:
    path = manifest_of(killed)
    raw = path.read_bytes()
    tables = tables_in(killed)
    for part in (0.3, 0.5, 0.8, 0.99):
        path.write_bytes(raw[: int(len(raw) * part)])
        assert str(path) in await refusal(engine, killed)
        assert tables_in(killed) == tables
    path.write_bytes(raw)
    assert await total(engine, killed) == 320


async def test_flipped_bit_of_a_manifest_is_found_before_the_engine_reads_it(killed: Path) -> None:
    """One in each byte, and fewer without a note; `make faults-damage` flips all."""
    path = manifest_of(killed)
    raw = path.read_bytes()
    for bit in range(0, len(raw) * 8, 7):
        path.write_bytes(flipped(raw, bit))
        with pytest.raises(StoreCorrupt):
            verify(str(killed / "data"))
    # What is not noted is verified record by record: all but the lengths, which may be those of a torn record.
    (killed / "data" / extent.NAME).unlink()
    starts = [start for _, start, _ in _fragments(str(path), raw, len(raw), 0)]
    lengths = {start - before for start in starts for before in (2, 3)}
    for bit in range(0, len(raw) * 8, 101):
        if bit // 8 not in lengths:
            path.write_bytes(flipped(raw, bit))
            with pytest.raises(StoreCorrupt):
                verify(str(killed / "data"))


async def test_length_that_was_flipped_in_a_manifest_is_refused_and_no_table_is_removed(
    engine: str, killed: Path
) -> None:
    """The engine would take the record for one that a crash has cut off, and remove the tables that follow."""
    path = manifest_of(killed)
    raw = path.read_bytes()
    tables = tables_in(killed)
    for _, start, _ in _fragments(str(path), raw, len(raw), 0):
        path.write_bytes(flipped(raw, (start - 2) * 8))
        assert "MANIFEST" in await refusal(engine, killed)
        assert tables_in(killed) == tables
    path.write_bytes(raw)
    assert await total(engine, killed) == 320


def flipped(raw: bytes, bit: int) -> bytes:
    changed = bytearray(raw)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


async def test_manifest_that_is_longer_than_it_was_noted_is_fine(engine: str, killed: Path) -> None:
    """A crash between an edit of the engine and the next note."""
    note = extent.read(str(killed / "data"))
    assert note is not None
    raw = manifest_of(killed).read_bytes()
    note.length = 0
    note.checksum = 0
    (killed / "data" / extent.NAME).write_bytes(extent.encode(note))
    # What is not noted is verified record by record; a torn edit at the end is left out.
    manifest_of(killed).write_bytes(flipped(raw, len(raw) // 2 * 8))
    assert "MANIFEST" in await refusal(engine, killed)
    manifest_of(killed).write_bytes(raw + b"\x01\x02\x03\x04\x40\x00\x01torn")
    assert await total(engine, killed) == 320


@pytest.mark.parametrize("kind", ["CURRENT", "MANIFEST", "table"])
async def test_missing_file_is_refused_by_name(engine: str, killed: Path, kind: str) -> None:
    data = killed / "data"
    path = data / tables_in(killed)[0] if kind == "table" else max(data.glob(f"*{kind}*"))
    raw = path.read_bytes()
    others = {path.name for path in damage.database(killed)} - {path.name}
    path.unlink()
    text = await refusal(engine, killed)
    assert path.stem in text or "or the log after it" in text
    assert others <= {path.name for path in damage.database(killed)}
    path.write_bytes(raw)
    assert await total(engine, killed) == 320


@pytest.mark.parametrize("left", ["nothing", "an empty folder"])
async def test_missing_database_is_refused_and_found_by_check(engine: str, url: str, folder: Path, left: str) -> None:
    """As where a volume is not mounted."""
    async with opened(url) as broker:
        await broker.send("default", [Draft(b"1")])
    shutil.rmtree(folder / "data")
    if left != "nothing":
        (folder / "data").mkdir()
    assert "CURRENT is damaged (it is missing)" in await refusal(engine, folder)
    assert check(str(folder)).damage == [f"{folder / 'data'} is damaged (its database is missing)"]


async def test_a_log_of_another_time_is_refused(engine: str, url: str, folder: Path) -> None:
    """It is valid, has the name of the current one, and is not shorter."""
    copies = [folder.with_name("first"), folder.with_name("second")]
    for copy, count in zip(copies, (40, 10), strict=True):
        async with opened(url) as broker:
            await broker.send("default", [Draft(os.urandom(700), "application/x-noise") for _ in range(count)])
            copy_as_after_kill(folder, copy)
    old, new = (max((copy / "log").glob("*.segment")) for copy in copies)
    old.rename(copies[1] / "log" / new.name)
    assert new.name in await refusal(engine, copies[1])


async def test_table_of_another_size_is_refused_at_the_start(engine: str, killed: Path) -> None:
    table = killed / "data" / tables_in(killed)[0]
    os.truncate(table, table.stat().st_size - 1)
    assert str(table) in await refusal(engine, killed)


async def test_folder_without_an_extent_opens_and_keeps_tables_that_are_not_in_its_list(
    engine: str, killed: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As one of an older version: whether its list of tables is complete cannot be told."""
    (killed / "data" / extent.NAME).unlink()
    stray = killed / "data" / ("009999" + Path(tables_in(killed)[0]).suffix)
    stray.write_bytes(b"of a list that was cut")
    with caplog.at_level(logging.WARNING):
        assert await total(engine, killed) == 320
    assert "could not be verified" in caplog.text
    assert (killed / "unnamed" / stray.name).read_bytes() == b"of a list that was cut"
    caplog.clear()
    assert await total(engine, killed) == 320
    assert caplog.text == ""


async def test_counts_that_no_message_stands_for_are_refused_at_the_start(url: str, engine: str, folder: Path) -> None:
    async with opened(url) as broker:
        await broker.send("default", [Draft(b"1"), Draft(b"2")])
        database = cast(EmbeddedStore, broker.store)._kv
        database.write([(key, None) for key, _ in database.scan(b"b", b"c")], True)
    assert "'default' counts 2 messages, and none can be found" in await refusal(engine, folder)


@pytest.mark.parametrize("state", damage.STATES)
def test_any_damage_is_refused_or_costs_nothing(
    engine: str, state: str, subjects: dict[tuple[str, str], damage.Subject]
) -> None:
    """A few of each kind; `make faults-damage` tries all."""
    chance = random.Random(state)
    subject = subjects[engine, state]
    by_kind: dict[tuple[str, str], list[Damage]] = {}
    for one in subject.damages(chance, large=20, every=7):
        by_kind.setdefault((one.kind, one.how), []).append(one)
    came: Counter[str] = Counter()
    for damages in by_kind.values():
        for one in chance.sample(damages, min(2, len(damages))):
            outcome = damage.outcome(subject, one)[1]
            assert outcome in ("refused", "complete"), one
            came[outcome] += 1
    assert came["refused"] > 10


@pytest.mark.parametrize("state", damage.STATES)
def test_folders_to_be_damaged_hold_topics_results_and_schedules(
    engine: str, state: str, subjects: dict[tuple[str, str], damage.Subject], tmp_path: Path
) -> None:
    shutil.copytree(subjects[engine, state].folder, tmp_path / "copy")
    database = logged.open_kv(Folder(str(tmp_path / "copy"), engine), True)
    try:
        records = {keys.read_record_key(key)[0] for key, _ in database.scan(b"k", b"l")}
        kinds = {key[:1] for key, _ in database.scan(b"", b"\xff")}
    finally:
        database.close()
    assert {"schedule", "topic"} <= records
    assert kinds >= {keys.SHARED, *(b"bwgiqsxdfy"[place : place + 1] for place in range(10))}


@pytest.fixture(scope="module")
def subjects(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], damage.Subject]:
    found = [subject for engine in damage.ENGINES for subject in damage.made(engine, tmp_path_factory.mktemp(engine))]
    return {(subject.engine, subject.state): subject for subject in found}


async def test_the_log_of_another_store_is_refused(url: str, engine: str, folder: Path) -> None:
    killed, other = folder.with_name("killed"), folder.with_name("other")
    async with opened(url) as broker:
        await broker.send("default", [Draft(b"1")])
        copy_as_after_kill(folder, killed)
    async with opened(f"{engine}:{other}") as broker:
        await broker.send("default", [Draft(b"2")])
        shutil.rmtree(killed / "log")
        copy_as_after_kill(other / "log", killed / "log")
    assert "000001.segment is damaged (it belongs to the log of another store)" in await refusal(engine, killed)


@pytest.mark.parametrize("how", ["flipped", "older"])
async def test_a_marker_that_does_not_name_the_log_is_refused_and_costs_nothing(
    url: str, engine: str, folder: Path, how: str
) -> None:
    killed = folder.with_name("killed")
    async with opened(url) as broker:
        await broker.send("default", [Draft(b"1")] * 50)
        copy_as_after_kill(folder, killed)
    marker = killed / "MINIQ"
    raw = marker.read_bytes()
    older = b'{"format":3,"engine":"%s","used":true}' % engine.encode()
    marker.write_bytes(raw.replace(b'"log"', b'"mog"') if how == "flipped" else older)
    logs = sorted((killed / "log").iterdir())
    store = open_store(f"{engine}:{killed}")
    with pytest.raises(StoreError, match="MINIQ is damaged"):
        await store.open()
    assert any("MINIQ is damaged" in text for text in check(str(killed)).damage)
    with pytest.raises(StoreError, match="MINIQ is damaged"):
        restore(str(killed), str(folder.with_name("restored")))
    assert sorted((killed / "log").iterdir()) == logs
    marker.write_bytes(raw)
    assert await total(engine, killed) == 50


async def test_files_of_others_in_a_folder_named_log_survive_a_conversion(url: str, engine: str, folder: Path) -> None:
    async with opened(url) as broker:
        await broker.send("default", [Draft(b"1")])
    shutil.rmtree(folder / "log")
    (folder / "data" / extent.NAME).unlink()
    (folder / "MINIQ").write_text(f'{{"format":3,"engine":"{engine}","used":true}}')
    (folder / "log" / "archive").mkdir(parents=True)
    (folder / "log" / "server.log").write_text("mine")
    assert await total(engine, folder) == 1
    assert (folder / "log" / "server.log").read_text() == "mine"
