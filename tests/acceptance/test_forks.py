"""Clients in forked processes, beside gevent, and in signal handlers: they work or say at once what would."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import miniq
from tests.acceptance.shell import complaints
from tests.conftest import ENGINES, store_url

pytestmark = pytest.mark.parametrize("engine", ENGINES)

CHILD_ENDS = """
import multiprocessing, os, random, signal, sys, warnings
import miniq
warnings.simplefilter("ignore", DeprecationWarning)  # from Python 3.12 on, of a fork beside threads: that is the point
processes = multiprocessing.get_context("fork")
url, other = sys.argv[1:]

def try_to_send(mq):
    try:
        mq.queue("a").send("from a child")
    except miniq.MiniQError as error:
        print(error.text, flush=True)

def run(target, *args):
    child = processes.Process(target=target, args=args)
    child.start()
    child.join(20)
    print("exit code", child.exitcode, flush=True)

def try_to_open():
    try:
        miniq.connect(other)
    except miniq.MiniQError as error:
        print(error.text, flush=True)

mq = miniq.connect(url)
"""
REFUSED = "cannot open {} in a process that was forked from one that had opened a folder"


def run(script: str, *args: str) -> list[str]:
    """The lines that a script prints."""
    ended = subprocess.run(
        [sys.executable, "-c", CHILD_ENDS + script, *args], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, complaints(ended.stderr)) == (0, "")
    return ended.stdout.splitlines()


@pytest.fixture
def url(engine: str, tmp_path: Path) -> str:
    return store_url(engine, tmp_path)


@pytest.fixture
def other(engine: str, tmp_path: Path) -> str:
    return f"{engine}:{tmp_path / 'other'}"


def test_a_child_of_multiprocessing_is_refused_at_once_and_ends(url: str, other: str) -> None:
    lines = run("run(try_to_send, mq); run(try_to_open); mq.queue('a').send(1); mq.close()", url, other)
    assert lines[0].startswith("the client was created before this process was forked, with its broker. Connect")
    assert "connect again" not in lines[0]
    assert "multiprocessing's 'spawn'; processes that share a folder need a server" in lines[0]
    assert lines[1] == "exit code 0"
    assert REFUSED.format(other.partition(":")[2]) in lines[2]
    assert "multiprocessing's 'spawn'" in lines[2]
    assert lines[3:] == ["exit code 0"]
    with miniq.connect(url) as mq:
        assert [m.body for m in mq.queue("a").receive(max=10)] == [1]


def test_a_child_cannot_open_a_folder_after_its_parent_closed_its_own(url: str, other: str) -> None:
    refusal, ended = run("mq.close(); run(try_to_open)", url, other)
    assert "storage engines do not survive a fork" in refusal
    assert ended == "exit code 0"


def test_a_forked_child_ends_with_its_own_exit_code(url: str, other: str) -> None:
    script = """
child = os.fork()
if not child:
    print("left by sys.exit")
    sys.exit(3)
print("exit code", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
mq.queue("a").send(1)
mq.close()
"""
    assert run(script, url, other) == ["left by sys.exit", "exit code 3"]


def test_a_living_child_does_not_keep_the_lock_of_a_killed_parent(url: str, other: str) -> None:
    script = """
mq.queue("a").send(1)
if not os.fork():
    # A worker that outlives its master.
    print("forked", flush=True)
    sys.stdin.read()
    os._exit(0)
signal.pause()
"""
    with subprocess.Popen(
        [sys.executable, "-c", CHILD_ENDS + script, url, other],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "forked\n"
        process.kill()
        process.wait(20)
        with miniq.connect(url) as mq:
            assert mq.queue("a").receive()[0].body == 1


def test_a_child_that_closes_its_client_does_not_unlock_the_parents_folder(url: str, other: str) -> None:
    script = """
run(lambda: mq.close())
refused = subprocess.run([sys.executable, "-c", "import sys, miniq; miniq.connect(sys.argv[1])", url],
    capture_output=True, text=True)
print("is open in process" in refused.stderr)
mq.close()
"""
    assert run("import subprocess\n" + script, url, other) == ["exit code 0", "True"]


def test_a_signal_handler_may_send_while_the_program_sends(url: str, other: str) -> None:
    script = """
q = mq.queue("a")
sent = 0
def send(*_):
    global sent
    q.send("by the handler")
    sent += 1
signal.signal(signal.SIGALRM, send)
count = 0
while sent < 200:
    before = sent
    signal.setitimer(signal.ITIMER_REAL, random.random() / 2000)
    while sent == before:
        q.send("by the program")
        count += 1
print(q.info().counts.total - count - sent)
mq.close()
"""
    assert run(script, url, other) == ["0"]


def test_greenlets_of_gevent_share_a_client(url: str, other: str) -> None:
    script = """
from gevent import monkey
monkey.patch_all()
import gevent, sys, miniq
mq = miniq.connect(sys.argv[1])
q = mq.queue("a")
def work(n):
    q.send(n)
    return [m.body for m in q.receive(wait=5)]
jobs = [gevent.spawn(work, n) for n in range(20)]
gevent.joinall(jobs, timeout=20, raise_error=True)
print(sorted(body for job in jobs for body in job.value) == list(range(20)))
mq.close()
"""
    ended = subprocess.run([sys.executable, "-c", script, url], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.stdout, complaints(ended.stderr)) == ("True\n", "")
