"""The check of a closed store or a backup: every file, every record, and whether the counts agree with the messages.

Nothing in the folder is changed. Engines write when they open a database, so they get a folder of their own with links
to the tables and logs, which they only read.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from glob import escape as glob_escape
from glob import glob

import msgspec
from msgspec import Struct

from miniq.errors import InvalidRequest, MiniQError, StoreCorrupt
from miniq.store.embedded import block_records, keys, segments
from miniq.store.embedded.backup import damaged_files, is_needed
from miniq.store.embedded.blocks import Shelf
from miniq.store.embedded.engine import open_engine, require_driver
from miniq.store.embedded.folder import (
    LOCK,
    MARKER,
    damaged_marker,
    holds,
    is_used,
    locked_for_reading,
    log_id_of,
    read_marker,
)
from miniq.store.embedded.kv import Ordered
from miniq.store.embedded.logged import replay, require_no_log, verify_log
from miniq.store.embedded.manifest import TABLES
from miniq.store.embedded.verify import verify
from miniq.store.embedded.window import sizes_of

Progress = Callable[[int, int], None]
"""Called with the number of bytes that were read, and of all."""
_DECODERS: dict[bytes, Callable[[bytes], object]] = {
    b"s": keys.decode_state,
    b"r": keys.decode_error,
    b"d": keys.decode_dedup,
    b"f": keys.decode_result,
    b"p": keys.decode_readers,
    b"n": keys.decode_claim,
    b"e": keys.decode_part,
    b"o": keys.decode_head,
    b"h": keys.decode_events,
}
"""Of records that are not read with the messages of their queue."""


class CheckedQueue(Struct):
    name: str
    messages: int
    """How many could be read."""
    expected: int
    """How many the queue counts."""


class Report(Struct):
    """What was found in a folder."""

    folder: str
    kind: str
    """`store` or `backup`."""
    engine: str = ""
    files: int = 0
    bytes: int = 0
    records: int = 0
    queues: list[CheckedQueue] = []
    damage: list[str] = []
    """Each with the file or queue, and what is wrong."""
    unverified: list[str] = []
    """What could not be verified, because it was never noted."""
    not_needed: list[str] = []
    """Damaged files that nothing reads."""


def check(folder: str, progress: Progress = lambda done, total: None) -> Report:
    """Check a folder. Raises `StoreLocked` if a process has it open."""
    if not any(holds(folder, name, "folder") for name in (MARKER, "data/CURRENT")):
        raise InvalidRequest(f"folder: {folder} is neither a store nor a backup", field="folder")
    report = Report(folder, "store", queues=[], damage=[], unverified=[], not_needed=[])
    with locked_for_reading(folder, "folder"):
        try:
            _check(folder, report, progress)
        except StoreCorrupt as error:
            if not any(text.startswith(error.text.partition(" (")[0].partition(": ")[2]) for text in report.damage):
                report.damage.append(_short(error))
    return report


def _check(folder: str, report: Report, progress: Progress) -> None:
    data = os.path.join(folder, "data")
    if (text := damaged_marker(folder)) is None:
        report.engine, files = read_marker(folder, "folder")
    else:
        report.damage.append(text)
        if not os.path.exists(os.path.join(data, "CURRENT")):
            return
        files = None
        report.engine = "rocksdb" if glob(os.path.join(glob_escape(data), "OPTIONS-*")) else "leveldb"
        if not os.path.exists(os.path.join(folder, LOCK)):
            report.kind = "backup"  # a store has been opened
    require_driver(report.engine)
    sizes = [os.stat(os.path.join(data, name)).st_size for name in os.listdir(data)] if os.path.isdir(data) else []
    report.files, report.bytes = len(sizes), sum(sizes)
    done, total = 0, report.bytes * (1 if files is None else 2)

    def advance(size: int) -> None:
        nonlocal done
        done = min(done + size, total)
        progress(done, total)

    if files is not None:
        report.kind = "backup"
        for path, text in damaged_files(folder, files, advance):
            if is_needed(path):
                report.damage.append(f"{path} is damaged ({text})")
            else:
                report.not_needed.append(f"{path} ({text})")
    found = verify(data)
    if found is None:
        if is_used(folder):
            report.damage.append(f"{data} is damaged (its database is missing)")
        elif sizes:
            report.unverified.append("there is no database in it yet")
        return
    if not found.is_noted:
        report.unverified.append(
            "EXTENT is missing or older, so nothing tells whether the newest messages are all there"
        )
    log_id = log_id_of(folder) if files is None else None
    if log_id is not None:
        verify_log(folder, log_id)
    elif files is None and report.kind == "store":
        require_no_log(folder)
    with _opened_copy(report.engine, folder, log_id, report.damage) as kv:
        _check_records(kv, report, advance)
    progress(total, total)


@contextmanager
def _opened_copy(engine: str, folder: str, log_id: bytes | None, damage: list[str]) -> Iterator[Ordered]:
    """A database in a folder of its own, with links to the tables and logs, and with what the commit log has. `damage`
    then names the files by the paths that they have in `folder`."""
    data = os.path.join(folder, "data")
    with tempfile.TemporaryDirectory(prefix="miniq-check-") as place:
        copy = os.path.join(place, "data")
        os.mkdir(copy)
        for name in os.listdir(data):
            source, target = os.path.abspath(os.path.join(data, name)), os.path.join(copy, name)
            if name.endswith(TABLES) or (name.endswith(".log") and log_id is None):
                os.symlink(source, target)
            elif name != "LOCK" and is_needed(name) and not name.endswith(".log"):
                shutil.copyfile(source, target)
        try:
            kv = open_engine(engine, copy, log_id is not None, read_only=log_id is None)
            try:
                if log_id is not None:
                    replay(kv, os.path.join(folder, segments.NAME), log_id)
                yield kv
            finally:
                kv.close()
        except StoreCorrupt as error:
            raise StoreCorrupt(error.text.replace(copy, data), field=error.field) from None
        finally:
            damage[:] = [text.replace(copy, data) for text in damage]


def _check_records(kv: Ordered, report: Report, advance: Callable[[int], None]) -> None:
    """Read every record. Adds what is damaged to the report, and goes on with the next queue or kind of record."""

    def scan(prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        for key, value in kv.scan(prefix, keys.after(prefix)):
            report.records += 1
            advance(len(key) + len(value))
            yield key, value

    def attempt(what: str, work: Callable[[], None]) -> None:
        try:
            work()
        except MiniQError as error:
            report.damage.append(f"{what}: {_short(error)}")
        except (msgspec.MsgspecError, ValueError, IndexError) as error:
            report.damage.append(f"{what}: a record cannot be read ({error})")

    queues: dict[str, keys.QueueRecord] = {}
    attempt("queues", lambda: queues.update({key[1:].decode(): keys.decode_queue(value) for key, value in scan(b"q")}))
    for name, queue in queues.items():
        checked = CheckedQueue(name, 0, 0)
        report.queues.append(checked)
        attempt(f"queue {name!r}", partial(_check_queue, kv, scan, queue.number, checked))
    attempt("shared blocks", lambda: _check_shared(kv, scan, queues))
    for kind, decode in _DECODERS.items():
        attempt(f"records {kind.decode()!r}", partial(_decode_all, scan(kind), decode))


def _decode_all(pairs: Iterable[tuple[bytes, bytes]], decode: Callable[[bytes], object]) -> None:
    for _, value in pairs:
        decode(value)


def _check_queue(
    kv: Ordered, scan: Callable[[bytes], Iterable[tuple[bytes, bytes]]], number: int, checked: CheckedQueue
) -> None:
    """Raise unless the messages of a queue are as many, and as large, as it counts, and so in each group."""
    counted = kv.get(keys.count_key(number))
    counts = keys.CountRecord(0, 0, {}) if counted is None else keys.decode_count(counted)
    checked.expected = counts.count
    prefix = keys.of_queue(b"x", number)
    gone = {key[len(prefix) :]: int.from_bytes(keys.decode_gone(value).gone, "little") for key, value in scan(prefix)}
    prefix = keys.of_queue(b"g", number)
    groups = {key[len(prefix) :].decode(): keys.decode_group(value).count for key, value in scan(prefix)}
    members: Counter[str] = Counter()
    size = 0
    for kind in (b"b", b"w"):
        for key, value in scan(keys.of_queue(kind, number)):
            messages = block_records.decode_block(value, kv.get)
            removed = gone.get(key[-37:] if key[-1:] == b"m" else key[-36:], 0)
            checked.messages += len(messages) - removed.bit_count()
            size += sum(size for place, size in enumerate(sizes_of(messages)) if not removed >> place & 1)
            if len(messages) == 1 and messages[0].group is not None:
                members[messages[0].group] += 1
    for _, value in scan(keys.of_queue(b"v", number)):
        block_records.decode_block(keys.decode_kept(value).block, kv.get)
    if (checked.messages, size) != (counts.count, counts.size):
        raise StoreCorrupt(
            f"it counts {counts.count} messages with {counts.size} bytes, and has {checked.messages} with {size}"
        )
    if members != groups:
        name = next(name for name in {*members, *groups} if members[name] != groups.get(name, 0))
        raise StoreCorrupt(f"group {name!r} counts {groups.get(name, 0)} messages, and has {members[name]}")


def _check_shared(
    kv: Ordered, scan: Callable[[bytes], Iterable[tuple[bytes, bytes]]], queues: Mapping[str, keys.QueueRecord]
) -> None:
    """Raise unless as many queues refer to each shared block as it counts. What is left of purged and deleted queues
    refers to them until it is removed."""
    counted: Counter[bytes] = Counter()
    for key, value in scan(keys.SHARED):
        decoded = block_records.decode_shared(key, value)
        if isinstance(decoded, int):
            counted[key[:-1]] = decoded
    if not counted:
        return
    found: Counter[bytes] = Counter()
    for number in {queue.number for queue in queues.values()} | {keys.number_of(key) for key, _ in scan(b"z")}:
        for kind in (b"b", b"w"):
            prefix = keys.of_queue(kind, number)
            for _, value in kv.scan(prefix, keys.after(prefix)):
                source = block_records.source_of(value)
                if source is not None and source[:1] == keys.SHARED:
                    found[source] += 1
    for key in {*counted, *found}:
        if counted[key] != found[key]:
            raise StoreCorrupt(f"{found[key]} queues refer to a shared block that counts {counted[key]}")


def check_counts(kv: Ordered, shelves: Iterable[Shelf]) -> None:
    """Raise if a queue counts messages and none can be found: one look per queue, at every start."""
    counting = sorted((shelf for shelf in shelves if shelf.count), key=lambda shelf: shelf.number)
    with kv.seeking(keys.after(b"w")) as seek:
        for shelf in counting:
            if not any((key := seek(start)) is not None and key < end for start, end in _places(shelf)):
                raise StoreCorrupt(
                    f"store: queue {shelf.name!r} counts {shelf.count} messages, and none can be found. Restore the "
                    "folder from a backup (miniq restore)",
                    field="store",
                )


def _places(shelf: Shelf) -> Iterator[tuple[bytes, bytes]]:
    """Where messages of a queue may be: where its lanes are read next, then anywhere, which may pass removed ones."""
    for priority, seen in sorted((shelf.starts or {}).items(), reverse=True):
        if seen:
            lane = keys.lane_prefix(shelf.number, "", priority)
            yield lane + seen.encode(), keys.after(lane)
    for kind in (b"b", b"w"):
        prefix = keys.of_queue(kind, shelf.number)
        yield prefix, keys.after(prefix)


def _short(error: MiniQError) -> str:
    """The text of an error without the advice that follows it."""
    return error.text.partition(". Nothing was changed")[0].removeprefix("store: ")
