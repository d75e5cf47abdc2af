"""A store's folder is closed to other users, whatever the umask."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import miniq
from miniq.store.embedded.backup import restore
from tests.conftest import ENGINES, store_url
from tests.serving import serving


def modes(folder: Path) -> set[str]:
    """The permissions of folders and files."""
    found = {stat.filemode(folder.stat().st_mode)}
    return found | {stat.filemode(path.stat().st_mode) for path in folder.rglob("*")}


CLOSED = {"drwx------", "-rw-------"}


@pytest.fixture(autouse=True)
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_folder_its_backup_and_what_is_restored_are_closed(tmp_path: Path, engine: str) -> None:
    url, folder, backup = store_url(engine, tmp_path), tmp_path / engine, tmp_path / "backup"
    with miniq.connect(url) as mq:
        assert stat.filemode(folder.stat().st_mode) == "drwx------"
        mq.queue("q").send("x" * 100)
        mq.backup(backup)
        assert modes(backup) == CLOSED
    assert modes(folder) == CLOSED
    restore(str(backup), str(tmp_path / "restored"))
    assert modes(tmp_path / "restored") == CLOSED
    for path in (folder, *folder.rglob("*")):  # as an earlier version left it
        path.chmod(0o777 if path.is_dir() else 0o666)
    with miniq.connect(url) as mq:
        assert stat.filemode(folder.stat().st_mode) == "drwx------"
        assert mq.queue("q").info().counts.total == 1
    assert modes(folder) == CLOSED


def test_a_server_creates_no_file_for_others(tmp_path: Path) -> None:
    with serving(f"rocksdb:{tmp_path / 'data'}") as served:
        with miniq.connect(served.url) as mq:
            mq.queue("q").send("x")
            mq.backup(tmp_path / "backup")
        assert modes(tmp_path / "data") == modes(tmp_path / "backup") == CLOSED


@pytest.mark.parametrize("path", ["a\0b", "\ud800", "x" * 300, "", "/proc/nowhere/x"])
def test_a_backup_to_an_impossible_path_is_refused(tmp_path: Path, path: str) -> None:
    with (
        miniq.connect(tmp_path / "data") as mq,
        pytest.raises(
            miniq.InvalidRequest, match=r"^path: (cannot make .*; name a new folder|'/proc/nowhere/x': there is no)"
        ),
    ):
        mq.backup(path)


UNPRIVILEGED = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
"""Root may read every folder; without these capabilities it is like any other user."""
CONNECT = ["-c", "import miniq\ntry: miniq.connect('{}')\nexcept miniq.StoreError as error: exit(error.text)"]


@pytest.mark.parametrize(
    ("mode", "command"),
    [
        (0o000, ["-m", "miniq", "check", "{}"]),
        (0o000, ["-m", "miniq", "queues", "--url", "{}"]),
        (0o000, ["-m", "miniq", "migrate", "{}", "rocksdb:copy"]),
        (0o000, CONNECT),
        (0o300, CONNECT),
    ],
    ids=["check", "queues", "migrate", "connect", "connect-unlisted"],
)
def test_a_folder_that_the_user_may_not_read_is_named(tmp_path: Path, mode: int, command: list[str]) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    folder.chmod(mode)
    done = subprocess.run(
        [*UNPRIVILEGED, sys.executable, *(word.format(f"rocksdb:{folder}") for word in command)],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
    )
    folder.chmod(0o700)
    assert done.returncode == 1
    assert f"permission denied: {folder}" in done.stderr


def test_a_file_in_place_of_a_store_is_said_to_be_no_folder(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    with pytest.raises(miniq.StoreError, match=r"^store: .*/data is not a folder; name the folder of a store"):
        miniq.connect(tmp_path / "data")
