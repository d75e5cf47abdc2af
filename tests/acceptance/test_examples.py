"""The programs in `examples/`, as their readers would run them."""

from __future__ import annotations

import contextlib
import json
import signal
import socketserver
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

import miniq
from tests.acceptance.shell import environment
from tests.server import clear
from tests.serving import Served, free_ports

EXAMPLES = Path(__file__).parents[2] / "examples"


class Mailbox(socketserver.StreamRequestHandler):
    """A mail server that refuses nobody@…, and keeps what it gets."""

    mails: ClassVar[list[str]] = []

    def handle(self) -> None:
        self.wfile.write(b"220 here\r\n")
        for line in self.rfile:
            verb = line[:4].upper()
            if verb == b"DATA":
                self.wfile.write(b"354 go on\r\n")
                text = b"".join(iter(self.rfile.readline, b".\r\n"))
                self.mails.append(text.decode())
            refused = verb == b"RCPT" and b"nobody@" in line
            self.wfile.write(b"550 no\r\n" if refused else b"221 bye\r\n" if verb == b"QUIT" else b"250 ok\r\n")
            if verb == b"QUIT":
                return


@contextmanager
def worker(folder: Path, app: str, **env: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "miniq", "worker", app], cwd=folder, env=environment(**env), stderr=subprocess.DEVNULL
    )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        code = process.wait(60)
    assert code == 0


def test_a_program_without_its_arguments_prints_its_usage() -> None:
    folder = EXAMPLES / "emails"
    ended = subprocess.run([sys.executable, "send.py"], cwd=folder, env=environment(), capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (1, "usage: python send.py ADDRESS...\n")


def test_e_mails_are_tried_again_rejected_or_noted(server: Served) -> None:
    clear(server.url)
    [port] = free_ports(1)
    env = {"MINIQ_URL": server.url, "SMTP": f"127.0.0.1:{port}", "RETRY_DELAY": "0.5"}
    with miniq.connect(server.url) as mq, worker(EXAMPLES / "emails", "shop:app", **env):
        command = [sys.executable, "send.py", "ann@example.com", "nobody@example.com", "no address"]
        sent = subprocess.run(
            command, cwd=EXAMPLES / "emails", env=environment(**env), capture_output=True, text=True, check=True
        )
        first, *_ = sent.stdout.split()
        [bad] = mq.queue("undeliverable").receive(wait=30)
        with bad:
            assert bad.body == {
                "to": "no address",
                "why": "rejected",
                "error": "miniq.Reject: 'no address' is not an address",
            }
        while mq.queue("emails").get(first).error is None:  # the mail server is not there yet
            time.sleep(0.02)
        with socketserver.ThreadingTCPServer(("127.0.0.1", port), Mailbox) as mailbox:
            threading.Thread(target=mailbox.serve_forever).start()
            [refused] = mq.queue("undeliverable").receive(wait=30)
            with refused:
                assert refused.body["to"] == "nobody@example.com"
            while mq.queue("emails").info().counts.total:
                time.sleep(0.02)
            mailbox.shutdown()
        [mail] = Mailbox.mails
        assert "Hello ann@example.com!" in mail
        assert f"<{first}@shop.example.com>" in mail


WEB = """
import asyncio, httpx, shop
from shop import app, lifespan, web
from miniq.testing import drain

async def main():
    async with lifespan(web), httpx.AsyncClient(transport=httpx.ASGITransport(web), base_url="http://shop") as client:
        assert (await client.post("/invoices", json={"customer": "ann"})).status_code == 422
        lines = {"lines": [{"text": "bolt", "cents": 250}], "customer": "ann"}
        shop.QUICK = 0.0
        slow = await client.post("/invoices", json=lines)
        first = slow.json()["id"]
        assert (slow.status_code, slow.json()) == (202, {"id": first, "status": "waiting", "invoice": None})
        second = (await client.post("/invoices", json={"lines": [], "customer": "bob"})).json()["id"]
        assert (await client.get(f"/invoices/{first}")).json()["status"] == "waiting"
        assert await asyncio.to_thread(drain, app) == 2
        written = {"number": "ann-250", "cents": 250}
        assert (await client.get(f"/invoices/{first}")).json() == {"id": first, "status": "done", "invoice": written}
        failed = await client.get(f"/invoices/{second}", params={"wait": 1})
        assert failed.status_code == 422 and "an invoice of nothing" in failed.json()["detail"], failed
        assert "\\n" not in failed.json()["detail"], failed
        assert (await client.get("/invoices/never")).status_code == 404

        shop.QUICK = 30.0
        answer = asyncio.create_task(client.post("/invoices", json=lines))
        while not await asyncio.to_thread(drain, app):
            await asyncio.sleep(0.01)
        assert ((await answer).status_code, (await answer).json()["invoice"]) == (201, written)

asyncio.run(main())
"""


def test_a_web_service_answers_with_the_results_of_its_tasks() -> None:
    env = environment(MINIQ_URL="memory:")
    ran = subprocess.run(
        [sys.executable, "-c", WEB], cwd=EXAMPLES / "web", env=env, capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stderr) == (0, "")


def test_a_schedule_publishes_to_the_queues_that_want_to_know(server: Served, tmp_path: Path) -> None:
    clear(server.url)
    folder, env = EXAMPLES / "closing", {"MINIQ_URL": server.url, "REPORTS": str(tmp_path / "reports")}
    for _ in range(2):  # again changes nothing
        plan = subprocess.run(
            [sys.executable, "plan.py"], cwd=folder, env=environment(**env), capture_output=True, text=True, check=True
        )
        assert [line.partition(":")[0] for line in plan.stdout.splitlines()] == ["close-berlin", "close-lisbon"]
    with miniq.connect(server.url) as mq, worker(folder, "shop:app", **env):
        assert len(mq.topic("shops").info().subscriptions) == 2
        for shop in ("lisbon", "berlin"):
            mq.run_schedule(f"close-{shop}")
        [order] = mq.queue("supplier").receive(wait=30)
        with order:
            assert order.body == {"restock": "berlin"}
        while mq.queue("reports").info().counts.total or mq.queue("reorders").info().counts.total:
            time.sleep(0.02)
        reports = [json.loads(path.read_text()) for path in (tmp_path / "reports").glob("*.json")]
        assert sorted(report["shop"] for report in reports) == ["berlin", "lisbon"]
        assert mq.queue("supplier").info().counts.total == 0
        for name in ("close-berlin", "close-lisbon"):
            mq.delete_schedule(name)
        mq.topic("shops").delete()


def test_a_shop_in_django_sends_its_tasks_through_celery(server: Served, tmp_path: Path) -> None:
    clear(server.url)
    folder, [port] = EXAMPLES / "django", free_ports(1)
    env = environment(BROKER_URL=f"miniq://127.0.0.1:{server.port}", MAILS=str(tmp_path / "mails"))
    flags = [sys.executable, "manage.py", "runserver", "--noreload", f"127.0.0.1:{port}"]
    work = [sys.executable, "-m", "celery", "-A", "shop", "worker", "--pool", "solo"]
    with contextlib.ExitStack() as stack:
        for command in (flags, work):
            process = subprocess.Popen(
                command, cwd=folder, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            stack.callback(process.wait, 60)
            stack.callback(process.send_signal, signal.SIGTERM)
        request = urllib.request.Request(f"http://127.0.0.1:{port}/orders/7?to=ann@example.com", method="POST")
        end = time.monotonic() + 60
        while True:
            try:
                with urllib.request.urlopen(request) as answer:  # noqa: S310
                    assert (answer.status, answer.read()) == (201, b"order 7\n")
                break
            except urllib.error.URLError as error:
                if isinstance(error, urllib.error.HTTPError) or time.monotonic() > end:
                    raise
                time.sleep(0.05)
        while not (mails := list((tmp_path / "mails").glob("*"))) or "Order 7" not in mails[0].read_text():
            assert time.monotonic() < end
            time.sleep(0.05)
    with miniq.connect(server.url) as mq:
        [later] = mq.queue("celery").peek()
        assert (later.headers["task"], later.status) == ("shop.tasks.ask_for_review", "delayed")
    clear(server.url)
