"""A web server that forks its workers, and pytest-xdist: clients of a server work in each process, folders in one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import miniq
from tests.acceptance.shell import complaints
from tests.conftest import store_url
from tests.server import clear
from tests.serving import Served

WORKERS = 3
SHARE = 5
"""Requests that each worker serves before it ends."""
WEB_SERVER = """
import json, os, sys, urllib.request, warnings
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
import miniq
warnings.simplefilter("ignore", DeprecationWarning)  # from Python 3.12 on, of a fork beside threads: that is the point
url, folder, other, workers, share = sys.argv[1:4] + [int(text) for text in sys.argv[4:]]

def attempt(work):
    try:
        return work()
    except miniq.MiniQError as error:
        return f"{type(error).__name__}: {error.text}"

class Site(BaseHTTPRequestHandler):
    def do_POST(self):
        job = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        answer = {"pid": os.getpid(), "id": attempt(lambda: orders.send(job))}
        answer["taken"] = [(m.body, m.ack()) for m in orders.receive()]
        answer["folder"] = attempt(lambda: embedded.queue("orders").send(job))
        answer["other"] = attempt(lambda: miniq.connect(other))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(answer, default=str).encode())

    def log_message(self, *args):
        pass

mq = miniq.connect(url)
orders = mq.queue("orders")
embedded = miniq.connect(folder)
orders.send("by the master")
embedded.queue("orders").send("by the master")
site = HTTPServer(("127.0.0.1", 0), Site)
site.socket.settimeout(20)  # workers do not outlive a test that fails
pids = []
for _ in range(workers):
    if not (pid := os.fork()):
        for _ in range(share):
            site.handle_request()
        sys.exit(0)
    pids.append(pid)
address = "http://%s:%d/" % site.server_address

def ask(number):
    with urllib.request.urlopen(address, json.dumps(number).encode(), timeout=30) as answer:
        return answer.read().decode()

with ThreadPoolExecutor(workers) as pool:
    print(*pool.map(ask, range(workers * share)), sep=os.linesep)
print([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids], flush=True)
orders.send("by the master again")
embedded.queue("orders").send("by the master again")
print(embedded.queue("orders").info().counts.total)
embedded.close()
mq.close()
"""
"""Its master uses both of its clients before and after; it also sends the requests."""
PLUGIN = """
import miniq

def pytest_configure(config):
    if not hasattr(config, "workerinput"):  # in the process that starts the workers
        config.mq = miniq.connect("{folder}")
        config.mq.queue("q").send(1)
"""
TESTS = """
import pytest, miniq

@pytest.mark.parametrize("number", range(8))
def test_all(number, tmp_path):
    with miniq.connect(str(tmp_path)) as own, miniq.connect("{url}") as shared:
        for mq in (own, shared):
            mq.queue("tests").send(number)
        assert [m.body for m in own.queue("tests").receive()] == [number]
"""


@pytest.mark.parametrize(("engine", "wire"), [("rocksdb", "http"), ("leveldb", "zmq")])
def test_workers_of_a_prefork_web_server_use_the_client_of_their_master(
    server: Served, engine: str, wire: str, tmp_path: Path
) -> None:
    clear(server.url)
    url = server.url if wire == "http" else server.tcp
    args = [url, store_url(engine, tmp_path), f"{engine}:{tmp_path / 'other'}", str(WORKERS), str(SHARE)]
    ended = subprocess.run([sys.executable, "-c", WEB_SERVER, *args], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, complaints(ended.stderr)) == (0, "")
    *answers, codes, total = map(json.loads, ended.stdout.splitlines())
    assert (codes, total) == ([0] * WORKERS, 2)
    assert sorted(Counter(answer["pid"] for answer in answers).values()) == [SHARE] * WORKERS
    for answer in answers:
        assert answer["folder"].startswith("Closed: the client was created before this process was forked")
        assert answer["other"].startswith(f"StoreError: store: cannot open {tmp_path / 'other'} in a process that was")
        for advice in ("Connect only after the fork (Gunicorn: in post_fork)", "start `miniq serve`"):
            assert all(advice in answer[refused] for refused in ("folder", "other"))
    assert len({answer["id"] for answer in answers}) == WORKERS * SHARE
    taken = [body for answer in answers for body, _ in answer["taken"]]
    with miniq.connect(server.url) as mq:
        taken += [message.body for message in mq.queue("orders").peek(limit=100)]
    assert Counter(taken) == Counter(["by the master", *range(WORKERS * SHARE), "by the master again"])


def test_workers_of_pytest_xdist_have_folders_of_their_own_and_share_a_server(server: Served, tmp_path: Path) -> None:
    clear(server.url)
    (tmp_path / "conftest.py").write_text(PLUGIN.format(folder=tmp_path / "data"))
    (tmp_path / "test_all.py").write_text(TESTS.format(url=server.url))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "xdist", "-p", "no:cacheprovider", "-n2"]
    command += ["-c", "/dev/null", "--rootdir", str(tmp_path), str(tmp_path)]
    only_xdist = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, env=only_xdist)
    assert ended.returncode == 0, ended.stdout
    with miniq.connect(server.url) as mq:
        assert sorted(message.body for message in mq.queue("tests").peek(limit=100)) == list(range(8))
