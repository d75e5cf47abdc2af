"""Signal handlers that send while the program itself sends or waits, over a server; `test_forks.py` has folders."""

from __future__ import annotations

import subprocess
import sys

import pytest

import miniq
from tests.acceptance.shell import complaints
from tests.server import clear
from tests.serving import Served

PROGRAM = """
import random, signal, sys, miniq

def send(*_):
    global sent
    q.send("by the handler")
    sent += 1

with miniq.connect(sys.argv[1]) as mq:
    q = mq.queue("a")
    sent = count = 0
    signal.signal(signal.SIGALRM, send)
    while sent < 60:
        before = sent
        signal.setitimer(signal.ITIMER_REAL, 0.0001 + random.random() / 500)
        while sent == before:
            if sent % 3:
                q.send("by the program")
                count += 1
            else:
                assert mq.queue("empty").receive(wait=0.05) == []
    print(count, sent)
"""


@pytest.mark.parametrize("wire", ["http", "zmq"])
def test_a_signal_handler_may_send_while_the_program_sends_or_waits(server: Served, wire: str) -> None:
    clear(server.url)
    with miniq.connect(server.url) as mq:
        mq.queue("empty").configure()
        command = [sys.executable, "-c", PROGRAM, server.url if wire == "http" else server.tcp]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert (ended.returncode, complaints(ended.stderr)) == (0, "")
        count, sent = map(int, ended.stdout.split())
        assert (sent, mq.queue("a").info().counts.total) == (60, count + sent)


def test_a_connection_imports_nothing_that_a_signal_could_interrupt(server: Served) -> None:
    program = (
        "import sys, miniq\nwith miniq.connect(sys.argv[1]) as mq: mq.whoami()\nprint('encodings.idna' in sys.modules)"
    )
    ended = subprocess.run([sys.executable, "-c", program, server.url], capture_output=True, text=True, timeout=60)
    assert (ended.stdout, ended.returncode) == ("False\n", 0), ended.stderr
