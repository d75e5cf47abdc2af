"""`miniq check` as people type it, on stores and backups."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import miniq
from miniq.store.embedded.check import check
from tests.conftest import ENGINES


def run(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "miniq", "check", *args], capture_output=True, text=True, timeout=120)


def contents(folder: Path) -> dict[Path, tuple[bytes, int]]:
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def store(engine: str, tmp_path: Path) -> Path:
    """A store with something of everything, and its backup beside it."""
    with miniq.connect(f"{engine}:{tmp_path / 'store'}") as mq:
        queue = mq.queue("jobs")
        queue.configure(history="events", dedup_window=60)
        queue.send_many([{"number": number} for number in range(300)])
        for number in range(3):
            queue.send(number, group="g", dedup_id=f"d{number}")
        queue.send("later", delay=60, recipient="ann")
        for message in queue.receive(max=50)[:30]:
            message.ack()
        mq.backup(tmp_path / "backup")
    return tmp_path / "store"


def test_sound_folders_are_read_and_not_changed(store: Path) -> None:
    for folder, kind in ((store, "store"), (store.with_name("backup"), "backup")):
        before = contents(folder)
        done = run(str(folder), "--json")
        assert (done.returncode, done.stderr) == (0, "")
        report = json.loads(done.stdout)
        assert (report["verdict"], report["kind"], report["messages"]) == ("sound", kind, 274)
        assert {"name": "jobs", "messages": 274, "expected": 274} in report["queues"]
        assert (report["damage"], report["unverified"]) == ([], [])
        assert contents(folder) == before


def test_a_folder_that_may_have_lost_its_newest_messages_is_not_called_sound(store: Path) -> None:
    (store / "data" / "EXTENT").unlink()
    done = run(str(store), "--json")
    assert (done.returncode, json.loads(done.stdout)["verdict"]) == (1, "unverified")


def test_damage_is_named_with_what_can_be_read_and_what_to_do(store: Path, engine: str) -> None:
    (victim,) = (path for path in (store.with_name("backup") / "data").iterdir() if path.name.startswith("MANIFEST"))
    os.truncate(victim, 30)
    done = run(str(store.with_name("backup")))
    assert done.returncode == 1
    assert done.stdout.startswith("damaged: backup ")
    assert done.stdout.count(f"damaged: {victim} is damaged (its size is 30 B, and was ") == 1
    assert "to do: use another backup" in done.stdout


def test_table_that_cannot_be_read_leaves_the_rest_readable(store: Path, engine: str) -> None:
    with miniq.connect(f"{engine}:{store}") as mq:
        mq.queue("other").send(1)  # what the log held is in tables now
    table = max(
        (store / "data").glob("*.sst" if engine == "rocksdb" else "*.ldb"), key=lambda path: path.stat().st_size
    )
    raw = bytearray(table.read_bytes())
    raw[40] ^= 1  # in its first block
    table.write_bytes(raw)
    report = check(str(store))
    assert any("queue 'jobs'" in text for text in report.damage)
    assert {queue.name for queue in report.queues} == {"default", "jobs", "other"}
    assert "miniq-check-" not in str(report)
    if engine == "rocksdb":  # LevelDB does not name the table
        assert any(str(table) in text for text in report.damage)


@pytest.mark.parametrize("how", ["missing", "cut"])
@pytest.mark.parametrize("kind", ["backup", "store"])
def test_a_folder_without_its_marker_is_read_all_the_same(store: Path, kind: str, how: str) -> None:
    marker = store.with_name(kind) / "MINIQ"
    os.unlink(marker) if how == "missing" else os.truncate(marker, 10)
    done = run(str(marker.parent))
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.startswith(f"damaged: {kind} ")
    assert "274 messages read)" in done.stdout
    assert (
        f"  damaged: {marker} is damaged (it {'is missing' if how == 'missing' else 'cannot be read'})\n" in done.stdout
    )


def test_damage_in_a_file_that_nothing_reads_does_not_spoil_a_backup(store: Path, engine: str) -> None:
    backup = store.with_name("backup")
    name = "OPTIONS-*" if engine == "rocksdb" else "LOG"
    if not (victims := list((backup / "data").glob(name))):
        (backup / "data" / "LOG").write_bytes(b"x")
        marker = json.loads((backup / "MINIQ").read_bytes())
        marker["files"]["data/LOG"] = [2, "0"]
        (backup / "MINIQ").write_text(json.dumps(marker))
        victims = [backup / "data" / "LOG"]
    for victim in victims:
        victim.write_bytes(victim.read_bytes()[:-1] + b"?")
    done = run(str(backup))
    assert (done.returncode, done.stderr) == (0, "")
    assert f"  damaged, but not needed: {victims[0]} (" in done.stdout
    assert "274 messages read)" in done.stdout
    restored = subprocess.run(
        [sys.executable, "-m", "miniq", "restore", str(backup), str(store.with_name("new"))],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert restored.returncode == 0, restored.stderr
    with miniq.connect(f"{engine}:{store.with_name('new')}") as mq:
        assert mq.queue("jobs").info().counts.total == 274


def test_damage_in_a_backup_is_listed_whole_with_what_can_be_read(store: Path, engine: str) -> None:
    backup = store.with_name("backup")
    extent = backup / "data" / "EXTENT"
    extent.write_bytes(b"")
    (manifest,) = (backup / "data").glob("MANIFEST-*")
    with open(manifest, "ab") as file:
        file.write(b"x")
    done = run(str(backup))
    assert done.returncode == 1
    assert f"damaged: {extent} is damaged (its size is 0 B, and was " in done.stdout
    assert f"damaged: {manifest} is damaged (its size is " in done.stdout
    assert "readable: 274 of 274 messages of queue 'jobs'" in done.stdout


def test_counts_that_differ_from_the_messages_are_damage(store: Path, engine: str) -> None:
    from miniq.store.embedded.folder import Folder
    from miniq.store.embedded.logged import open_kv

    kv = open_kv(Folder(str(store), engine), True)
    key = next(key for key, _ in kv.scan(b"b", b"c"))
    kv.write([(key, None)], True)
    kv.close()
    done = run(str(store))
    assert done.returncode == 1
    assert "queue 'jobs': it counts 274 messages with" in done.stdout
    assert "of 274 messages of queue 'jobs'" in done.stdout
    assert "to do: restore the newest sound backup (miniq restore" in done.stdout


def test_folder_in_use_is_refused(store: Path, engine: str) -> None:
    with miniq.connect(f"{engine}:{store}"):
        done = run(str(store))
    assert done.returncode == 1
    assert f"is open in process {os.getpid()}" in done.stderr
    assert "--url" not in done.stderr
    assert "check a backup of it" in done.stderr


@pytest.mark.parametrize("args", [[], ["nowhere"], ["."]])
def test_what_is_no_folder_of_a_store_is_wrong_usage(
    args: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run(*args)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_a_store_may_be_named_by_its_url(engine: str, store: Path) -> None:
    checked = run(f"{engine}:{store}", "--json")
    assert (checked.returncode, json.loads(checked.stdout)["verdict"]) == (0, "sound")
    for wrong, said in (
        ("memory:", "is not a folder"),
        ("postgresql://h/d", "is not a folder"),
        ("nowhere", "no folder"),
    ):
        refused = run(wrong)
        assert (refused.returncode, refused.stdout) == (2, "")
        assert said in refused.stderr
