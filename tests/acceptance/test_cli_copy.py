"""`miniq copy`: identical to the byte, in two processes, and nothing left behind when it fails."""

from __future__ import annotations

import hashlib
import io
import os
import random
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import miniq as miniq_library
from miniq.cli.copy_ends import Assembly, Whole
from tests.acceptance.shell import Shell, collect, on_folder, serving
from tests.kit import wait_for
from tests.serving import free_ports

CASES = {
    "no final newline": b"one\ntwo",
    "CRLF": b"one\r\ntwo\r\n",
    "lone CR": b"one\rtwo\r",
    "mixed ends": b"\r\n\n\r\r\n\n\ra\n\rb\r\r\n",
    "empty lines": b"\n\n\none\n\n\n",
    "one newline": b"\n",
    "empty file": b"",
    "invalid UTF-8": b"\xff\xfe\x00\n\xc3\x28\n\x80",
    "every byte": bytes(range(256)) * 10,
    "a line of 5 MiB": b"start\n" + random.Random(1).randbytes(5 * 1024 * 1024).replace(b"\n", b"\r") + b"\nend",
    "only zeros": bytes(3 * 1024 * 1024),
    "lines around the size of a piece": b"".join(b"x" * (512 * 1024 + more) + b"\n" for more in (-2, -1, 0, 1, 2)),
    "what looks like an end": b'end\n{"bytes":0,"sha256":""}\n',
}


@pytest.fixture(scope="module")
def miniq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    with serving(tmp_path_factory.mktemp("broker")) as shell:
        yield shell


def queues(miniq: Shell) -> list[str]:
    return [one["name"] for one in miniq("queues", "--json").objects]


@pytest.mark.parametrize("name", CASES)
def test_the_copy_is_identical_to_the_byte(miniq: Shell, tmp_path: Path, name: str) -> None:
    source, copy = tmp_path / "in", tmp_path / "out"
    source.write_bytes(CASES[name])
    (done,) = miniq("copy", str(source), str(copy), "--json").objects
    assert copy.read_bytes() == CASES[name]
    assert done["bytes"] == len(CASES[name])
    assert done["lines"] == CASES[name].count(b"\n") + (not CASES[name].endswith(b"\n") and bool(CASES[name]))
    assert queues(miniq) == ["default"]
    assert sorted(tmp_path.iterdir()) == [source, copy]


def test_100_000_lines_are_copied(miniq: Shell, tmp_path: Path) -> None:
    source, copy = tmp_path / "in", tmp_path / "out"
    source.write_bytes(b"".join(b"line %d of a file that has many of them\r\n" % n for n in range(100_000)))
    assert "copied 100000 lines" in miniq("copy", str(source), str(copy)).out
    assert copy.read_bytes() == source.read_bytes()


def test_a_folder_gets_a_broker_for_the_copy(tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"one\ntwo\n")
    miniq = on_folder(tmp_path)
    miniq("copy", "in", "out")
    assert (tmp_path / "out").read_bytes() == b"one\ntwo\n"
    assert queues(miniq) == ["default"]


def test_smaller_limits_of_the_broker_are_met(tmp_path: Path) -> None:
    data = random.Random(2).randbytes(3_000_000)
    (tmp_path / "in").write_bytes(data)
    env = {"MINIQ_LIMITS__BODY_BYTES": "5000", "MINIQ_LIMITS__BATCH": "1000", "MINIQ_LIMITS__REQUEST_BYTES": "100000"}
    with serving(tmp_path, **env) as miniq:
        miniq("copy", "in", "out")
    assert (tmp_path / "out").read_bytes() == data


def test_an_old_copy_is_replaced(miniq: Shell, tmp_path: Path) -> None:
    source, copy = tmp_path / "in", tmp_path / "out"
    source.write_bytes(b"new\n")
    copy.write_bytes(b"something old and longer\n")
    miniq("copy", str(source), str(copy))
    assert copy.read_bytes() == source.read_bytes() == b"new\n"


def test_a_file_is_not_copied_onto_itself(miniq: Shell, tmp_path: Path) -> None:
    source, link = tmp_path / "in", tmp_path / "link"
    source.write_bytes(b"new\n")
    link.hardlink_to(source)
    for out in (source, link):
        assert "is the same file as IN; name another file" in miniq("copy", str(source), str(out), code=2).err
    assert source.read_bytes() == b"new\n"


def test_copies_may_run_at_the_same_time(miniq: Shell, tmp_path: Path) -> None:
    sources = [tmp_path / f"in{n}" for n in range(3)]
    for n, source in enumerate(sources):
        source.write_bytes(b"".join(b"%d of %d\n" % (line, n) for line in range(5000)))
    running = [miniq.start("copy", str(source), f"{source}.out") for source in sources]
    ended = [collect(process) for process in running]
    assert [done.err for done in ended if done.code] == []
    for source in sources:
        assert Path(f"{source}.out").read_bytes() == source.read_bytes()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_copy_leaves_nothing(miniq: Shell, tmp_path: Path, number: int) -> None:
    source, copy = tmp_path / "in", tmp_path / "out"
    source.write_bytes(b"line\n" * 1_000_000)
    process = miniq.start("copy", str(source), str(copy))
    wait_for(lambda: any(name.startswith("copy-") for name in queues(miniq)))
    children = children_of(process.pid)
    process.send_signal(number)
    ended = collect(process)
    assert (ended.code, ended.err.strip()) == (1, "miniq: interrupted")
    assert list(tmp_path.iterdir()) == [source]
    assert queues(miniq) == ["default"]
    assert not any(is_running(child) for child in children)


@pytest.mark.parametrize("end", ["copy-write", "copy-read"])
def test_a_process_that_dies_fails_the_copy_and_leaves_nothing(miniq: Shell, tmp_path: Path, end: str) -> None:
    source, copy = tmp_path / "in", tmp_path / "out"
    source.write_bytes(b"line\n" * 1_000_000)
    process = miniq.start("copy", str(source), str(copy))
    wait_for(lambda: any(end in command(child) for child in children_of(process.pid)))
    (child,) = [child for child in children_of(process.pid) if end in command(child)]
    os.kill(child, signal.SIGKILL)
    ended = collect(process)
    assert ended.code == 1
    assert ended.err == "miniq: not copied: a process ended with -9\n"
    assert list(tmp_path.iterdir()) == [source]
    assert queues(miniq) == ["default"]


def test_a_copy_survives_that_the_broker_is_killed_and_comes_back(tmp_path: Path) -> None:
    source, copy = tmp_path / "in", tmp_path / "out"
    source.write_bytes(b"".join(b"line %d\n" % n for n in range(200_000)))
    store = f"rocksdb:{tmp_path / 'data'}"
    [port] = free_ports(1)
    miniq = Shell(f"http://127.0.0.1:{port}", tmp_path)
    serve = ("serve", "--store", store, "--port", str(port), "--no-zmq")  # ZeroMQ's own ports would be the known ones
    first = miniq.start(*serve)
    assert first.stdout is not None
    assert first.stdout.readline()
    process = miniq.start("copy", str(source), str(copy))
    wait_for(lambda: any(path.stat().st_size > 100_000 for path in tmp_path.glob("*.part")))
    first.kill()
    collect(first)
    second = miniq.start(*serve)
    try:
        ended = collect(process)
        assert (ended.code, ended.err) == (0, "")
        assert copy.read_bytes() == source.read_bytes()
        assert queues(miniq) == ["default"]
    finally:
        second.terminate()
        assert collect(second).code == 0


def test_what_cannot_be_copied_is_told(miniq: Shell, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"x")
    assert "does not exist" in miniq("copy", str(tmp_path / "nothing"), str(tmp_path / "out"), code=2).err
    said = miniq("copy", str(tmp_path / "in"), str(tmp_path / "no folder" / "out"), code=1).err
    assert "No such file or directory" in said
    assert said.count("\n") == 1
    assert queues(miniq) == ["default"]


def test_pieces_are_put_in_their_place_whatever_comes_late_early_or_twice() -> None:
    pieces = [b"%d\n" % n for n in range(6)]
    whole = Whole(sum(map(len, pieces)), hashlib.sha256(b"".join(pieces)).hexdigest())
    out = io.BytesIO()
    assembly = Assembly(out)
    with miniq_library.connect("memory:") as client:
        queue = client.queue("q")

        def came(*numbers: int | str) -> list[str | None]:
            """Feed messages with these numbers; the keys of those that are done."""
            queue.send_many(
                [
                    miniq_library.draft(msgspec.to_builtins(whole) if n == "end" else pieces[int(n)], key=str(n))
                    for n in numbers
                ]
            )
            return [message.key for message in assembly.add(queue.receive(100))]

        assert came(0, 2) == ["0"]
        assert came(0, 2, 3) == ["0"], "0 came again and is dropped, 2 is kept once"
        assert came("end", 5) == []
        assert came(1) == ["1", "2", "3"]
        assert not assembly.whole
        assert came(2, 4) == ["2", "4", "5", "end"]
    assert assembly.whole
    assert out.getvalue() == b"".join(pieces)
    assert (assembly.lines, assembly.size) == (6, 12)


def test_a_copy_that_is_not_what_was_sent_is_refused() -> None:
    assembly = Assembly(io.BytesIO())
    with miniq_library.connect("memory:") as client:
        queue = client.queue("q")
        queue.send(b"x", key="0")
        queue.send({"bytes": 1, "sha256": hashlib.sha256(b"y").hexdigest()}, key="end")
        with pytest.raises(miniq_library.MiniQError, match="not the 1 bytes sent"):
            assembly.add(queue.receive(100))


# What the operating system knows


def children_of(pid: int) -> list[int]:
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True)
    return [int(line) for line in found.stdout.split()]


def command(pid: int) -> str:
    return subprocess.run(["ps", "-o", "args=", "-p", str(pid)], capture_output=True, text=True).stdout


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
