"""The commit log: what is read after kills, power losses and damage."""

from __future__ import annotations

import errno
import os
import random
import shutil
import threading
from contextlib import suppress
from pathlib import Path
from zlib import crc32

import pytest

from miniq.errors import StoreCorrupt
from miniq.store.embedded import log as commit_log
from miniq.store.embedded import segments
from miniq.store.embedded.log import CommitLog
from miniq.store.embedded.segments import SECTOR, LogReader, Tail, file_name

ID = b"12345678"
Changes = list[tuple[int, bytes]]


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_log, "SMALLEST", 4096)
    monkeypatch.setattr(commit_log, "LARGEST", 16384)


def note(oldest: int, newest: int, change: int) -> None:
    """Note nothing: what a log looks like from inside is enough for these tests."""


def written(folder: Path, payloads: list[tuple[bytes, bool]], applied: int = 0) -> Changes:
    """Begin a log, write to it, and leave it as a kill would."""
    folder.mkdir()
    log = CommitLog(str(folder), ID, Tail(applied), applied, note)
    changes = [(log.append(payload, sync), payload) for payload, sync in payloads]
    log.abandon()
    return changes


def read(folder: Path, applied: int = 0) -> tuple[Changes, Tail]:
    reader = LogReader(str(folder), ID, applied)
    return list(reader), reader.tail


def newest(folder: Path) -> Path:
    return max(folder.glob("*.segment"))


SYNCED = [(bytes([65 + n]) * (20 + 90 * n), True) for n in range(8)]


def test_what_was_written_is_read_and_continued(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    changes = written(folder, SYNCED)
    assert read(folder)[0] == changes
    assert read(folder, applied=5)[0] == changes[5:]
    found, tail = read(folder)
    log = CommitLog(str(folder), ID, tail, 0, note)
    assert log.append(b"more", True) == 9
    log.abandon()
    assert read(folder)[0] == [*changes, (9, b"more")]
    assert found == changes


@pytest.mark.parametrize("size", [0, 1, 30, 31, 32, 5000, 40_000])
def test_payloads_of_every_size_and_of_zeros_are_read_as_they_were(tmp_path: Path, size: int) -> None:
    payloads = [(kind * size, sync) for kind in (b"\0", b"x", b"\xff") for sync in (True, False)]
    changes = written(tmp_path / "log", payloads)
    assert read(tmp_path / "log")[0] == changes
    raw = newest(tmp_path / "log").read_bytes()
    end = read(tmp_path / "log")[1].at
    assert all(any(raw[at : at + SECTOR]) for at in range(0, end - SECTOR, SECTOR)), "no sector is all zeros"


def test_segments_follow_each_other_and_are_removed_when_the_engine_has_them(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    folder.mkdir()
    log = CommitLog(str(folder), ID, Tail(0), 0, note)
    changes = [(log.append(payload, True), payload) for payload in [bytes([n]) * 900 for n in range(100)]]
    found, tail = read(folder)
    assert found == changes
    assert (
        [segment.number for segment in tail.segments]
        == segments.numbers(str(folder))
        == list(range(1, len(tail.segments) + 1))
    )
    applied = tail.segments[2].last
    log.release(applied - 1)
    assert segments.numbers(str(folder))[0] == 3
    log.release(applied)
    assert segments.numbers(str(folder))[0] == 4
    assert read(folder, applied)[0] == changes[applied:]
    log.close(100)
    assert [file.name for file in folder.iterdir()] == [file_name(len(tail.segments) + 1)]
    assert newest(folder).stat().st_size < 5000
    assert read(folder, applied=100)[0] == []


def test_a_log_of_which_the_engine_lacks_something_stays_when_it_is_closed(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    folder.mkdir()
    log = CommitLog(str(folder), ID, Tail(0), 0, note)
    log.append(b"a", True)
    log.append(b"b", False)
    log.close(1)
    assert read(folder, applied=1)[0] == [(2, b"b")]


def test_any_cut_of_the_last_write_is_torn_and_everything_before_it_is_there(tmp_path: Path) -> None:
    """As a kill in the middle of a write leaves it: the rest of it is zeros, from a page on, or from any sector."""
    folder = tmp_path / "log"
    changes = written(folder, [(b"a" * 300, True), (b"b" * 3000, True)])
    _, tail = read(folder)
    raw = newest(folder).read_bytes()
    start = tail.at - segments.padded(3000)
    for cut in range(start // SECTOR * SECTOR + SECTOR, tail.at, SECTOR):
        newest(folder).write_bytes(raw[:cut] + bytes(len(raw) - cut))
        found, torn = read(folder)
        assert (found, torn.is_clean) == (changes[:1], False)


@pytest.mark.parametrize("seed", range(20))
def test_a_power_loss_keeps_what_was_synced_whatever_sectors_of_the_rest_are_there(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    payloads = [(chance.randbytes(chance.choice((5, 300, 2000))), chance.random() < 0.4) for _ in range(12)]
    folder = tmp_path / "log"
    changes = written(folder, payloads)
    durable = max((n for n, (_, sync) in enumerate(payloads, 1) if sync), default=0)
    # The segment with the last synced change, and where that ends; all that follows is in the same segment or a later.
    for _ in range(30):
        copy = tmp_path / "copy"
        shutil.copytree(folder, copy)
        raw = bytearray(newest(copy).read_bytes())
        _, whole = read(folder)
        before = whole.segments[-2].last if len(whole.segments) > 1 else 0
        at = segments.START + sum(segments.padded(len(p)) for p, _ in payloads[before:durable])
        for sector in range(-(-at // SECTOR), len(raw) // SECTOR):
            if chance.random() < 0.5:
                raw[sector * SECTOR : sector * SECTOR + SECTOR] = bytes(SECTOR)
        newest(copy).write_bytes(raw)
        found, tail = read(copy)
        assert found == changes[: len(found)]
        assert len(found) >= durable
        log = CommitLog(str(copy), ID, tail, 0, note)
        number = log.append(b"after", True)
        log.abandon()
        assert read(copy)[0] == [*found, (number, b"after")], "what was torn stays away"
        shutil.rmtree(copy)


@pytest.mark.parametrize("seals", [True, False])
def test_no_flipped_bit_loses_a_change_in_silence(tmp_path: Path, seals: bool) -> None:
    folder = tmp_path / "log"
    payloads = [(bytes([65 + n]) * (20 + 250 * n), n != 3) for n in range(8 if seals else 3)]
    changes = written(folder, payloads)
    assert (len(segments.numbers(str(folder))) > 1) == seals
    refused = 0
    for path in sorted(folder.glob("*.segment")):
        raw = path.read_bytes()
        for at in range(len(raw)):
            damaged = bytearray(raw)
            damaged[at] ^= 1 << at % 8
            path.write_bytes(damaged)
            try:
                assert read(folder)[0] == changes, at
            except StoreCorrupt:
                refused += 1
        path.write_bytes(raw)
    assert refused > 600


def test_a_sector_of_zeros_before_a_synced_change_is_damage(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    written(folder, [(b"a" * 600, True), (b"b" * 600, True), (b"c" * 100, True), (b"d", True)])
    raw = newest(folder).read_bytes()
    for sector in range(2):
        newest(folder).write_bytes(raw[: sector * SECTOR] + bytes(SECTOR) + raw[(sector + 1) * SECTOR :])
        with pytest.raises(StoreCorrupt, match=r"segment is damaged \("):
            read(folder)


@pytest.mark.parametrize("which", ["first", "middle", "last", "all"])
def test_a_missing_segment_is_noticed(tmp_path: Path, which: str) -> None:
    folder = tmp_path / "log"
    written(folder, [(b"x" * 900, True)] * 40)
    paths = sorted(folder.glob("*.segment"))
    gone = {"first": paths[:1], "middle": paths[1:2], "last": paths[-1:], "all": paths}[which]
    for path in gone:
        path.unlink()
    with pytest.raises(StoreCorrupt):
        read(folder)


def test_segments_of_which_the_engine_has_all_may_be_missing(tmp_path: Path) -> None:
    """As a kill during their removal leaves it."""
    folder = tmp_path / "log"
    changes = written(folder, [(b"x" * 900, True)] * 40)
    applied = read(folder)[1].segments[2].last
    (folder / file_name(1)).unlink()
    (folder / file_name(2)).unlink()
    assert read(folder, applied)[0] == changes[applied:]


def test_an_engine_that_is_ahead_of_the_log_is_followed(tmp_path: Path) -> None:
    """Changes that were not synced may be lost in the log, and yet be in tables of the engine."""
    folder = tmp_path / "log"
    written(folder, [(b"a", True), (b"b", True)])
    found, tail = read(folder, applied=5)
    assert found == []
    log = CommitLog(str(folder), ID, tail, 5, note)
    assert log.append(b"c", True) == 6
    log.abandon()
    assert read(folder, applied=5)[0] == [(6, b"c")]
    assert segments.numbers(str(folder)) == [2]


@pytest.mark.parametrize("call", ["rename", "fsync", "pwritev"])
def test_a_kill_while_a_segment_is_begun_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """At each of these calls in turn, the folder is kept as it is before it, and after it."""
    folder = tmp_path / "log"
    folder.mkdir()
    kept: list[tuple[Path, Changes]] = []
    changes: Changes = []
    real = getattr(os, call)

    def keep() -> None:
        copy = tmp_path / f"kept{len(kept)}"
        shutil.copytree(folder, copy)
        kept.append((copy, changes.copy()))

    def watched(*args: object, **options: object) -> object:
        keep()
        result = real(*args, **options)
        keep()
        return result

    log = CommitLog(str(folder), ID, Tail(0), 0, note)
    monkeypatch.setattr(CommitLog, "_make_spare", lambda self: None)  # another thread would write meanwhile
    monkeypatch.setattr(os, call, watched)
    for n in range(30):
        payload = bytes([n]) * 900
        changes.append((log.append(payload, True), payload))
    log.abandon()
    monkeypatch.undo()
    assert len(kept) >= 4
    for copy, confirmed in kept:
        found, tail = read(copy)
        assert found[: len(confirmed)] == confirmed
        assert len(found) <= len(confirmed) + 1
        continued = CommitLog(str(copy), ID, tail, 0, note)
        number = continued.append(b"next", True)
        continued.abandon()
        assert read(copy)[0] == [*found, (number, b"next")]


def test_the_oldest_segment_that_is_noted_exists_also_if_one_is_removed_while_the_next_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "log"
    folder.mkdir()
    noted: list[tuple[int, int]] = []
    log = CommitLog(str(folder), ID, Tail(0), 0, lambda oldest, newest, change: noted.append((oldest, newest)))
    real = CommitLog._open

    def busy(self: CommitLog) -> None:
        self.release(self.last)
        assert set(noted[-1]) <= set(segments.numbers(str(folder)))
        real(self)

    monkeypatch.setattr(CommitLog, "_open", busy)
    for _ in range(40):
        log.append(b"x" * 900, True)
    log.abandon()
    assert noted[-1][1] > 3


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_a_spare_segment_that_could_not_be_synced_is_never_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """It is as large as it should be, but perhaps not on disk."""
    folder = tmp_path / "log"
    folder.mkdir()
    log = CommitLog(str(folder), ID, Tail(0), 0, note)
    real = CommitLog._fill
    filled = []

    def fill(self: CommitLog, size: int) -> None:
        filled.append(threading.current_thread() is threading.main_thread())
        real(self, size)
        if not filled[-1]:
            raise OSError(number, os.strerror(number))

    monkeypatch.setattr(CommitLog, "_fill", fill)
    appended = 0
    with suppress(OSError):
        for _ in range(20):
            log.append(b"x" * 900, True)
            appended += 1
    log.abandon()
    assert filled[0] is False
    assert (appended == 20) == (number == errno.ENOSPC)
    assert any(filled) == (number == errno.ENOSPC)
    assert len(read(folder)[0]) == appended


def test_records_inside_of_a_body_are_not_taken_for_those_of_the_log(tmp_path: Path) -> None:
    """A body that holds records, or a whole segment, is torn: neither makes the folder damaged."""
    record = segments.RECORD.pack(segments.MAGIC, segments.CHANGE, 0, 5, 9, 2**60, 0)
    record += crc32(record).to_bytes(4, "little")
    copied = tmp_path / "copied"
    written(copied, SYNCED * 3)
    for body in (record * 100, newest(copied).read_bytes()[:8000]):
        for shift in range(0, 32, 4):
            folder = tmp_path / f"log{shift}{len(body)}"
            changes = written(folder, [(b"a", True), (b" " * shift + body, True)])
            raw = bytearray(newest(folder).read_bytes())
            raw[SECTOR : 2 * SECTOR] = bytes(SECTOR)
            newest(folder).write_bytes(raw)
            assert read(folder)[0] == changes[:1]


def test_a_torn_change_that_looks_like_records_everywhere_is_scanned_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = written(tmp_path / "log", [(b"a", True), (b"MQ" * 2_000_000, True)])
    raw = bytearray(newest(tmp_path / "log").read_bytes())
    raw[4 * SECTOR : 5 * SECTOR] = bytes(SECTOR)
    newest(tmp_path / "log").write_bytes(raw)
    scans = []
    real = segments._is_zero
    monkeypatch.setattr(segments, "_is_zero", lambda raw, at: scans.append(at) or real(raw, at))
    assert read(tmp_path / "log")[0] == changes[:1]
    assert len(scans) < 3, "not one for each place where a record might begin"


def test_segments_that_were_to_be_removed_are_not_read(tmp_path: Path) -> None:
    """Their entries may be lost in any order."""
    folder = tmp_path / "log"
    changes = written(folder, [(b"x" * 900, True)] * 60)
    tail = read(folder)[1]
    oldest = tail.segments[4]
    applied = tail.segments[3].last
    for number in (1, 3):
        (folder / file_name(number)).unlink()
    segments.verify(str(folder), ID, oldest.number, tail.segments[-1].number, len(changes))
    reader = LogReader(str(folder), ID, applied, oldest.number)
    assert list(reader) == changes[applied:]
    CommitLog(str(folder), ID, reader.tail, applied, note).abandon()
    assert segments.numbers(str(folder))[0] == oldest.number


def test_other_files_in_the_folder_of_the_log_are_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    changes = written(folder, [(b"x" * 900, True)] * 10)
    for name in ("copy of 000001.segment", ".segment", "1.segment", "0000001.segment", "server.log"):
        (folder / name).write_bytes(b"mine")
    assert read(folder)[0] == changes


def test_a_log_that_ends_before_a_change_that_was_noted_is_refused(tmp_path: Path) -> None:
    written(tmp_path / "log", SYNCED)
    segments.verify(str(tmp_path / "log"), ID, 1, read(tmp_path / "log")[1].segments[-1].number, 8)
    with pytest.raises(StoreCorrupt, match="it ends with change 8, and there was change 9"):
        segments.verify(str(tmp_path / "log"), ID, 1, 1, 9)
