"""The pictures of the documentation. `make pictures` keeps them; otherwise they are only taken."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import threading
from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree

import pytest
from playwright.sync_api import expect

import miniq
from tests.acceptance.browser import Visit, browsing
from tests.acceptance.recording import Pane, record
from tests.acceptance.shell import MINIQ, environment
from tests.acceptance.staged import history, staged
from tests.acceptance.terminal import terminal
from tests.serving import serving

SHOP = """
import random, time
import miniq

app = miniq.App()

@app.task(queue="emails", max_receives=2, retry={"delay": 1})
def welcome(to: str) -> None:
    time.sleep(random.uniform(0.1, 0.4))
    if to.startswith("bounce"):
        raise ConnectionError(f"no mail server for {to}")

@app.task(queue="invoices")
def pdf(order: int) -> None:
    time.sleep(random.uniform(0.2, 0.8))
"""


def test_the_pictures_of_the_documentation_can_be_taken(tmp_path: Path) -> None:
    folder = Path(os.environ.get("MINIQ_PICTURES", tmp_path))
    with staged() as url, browsing() as browser:
        for name, size, scheme, path in (
            ("console", "desk", "light", "/"),
            ("console-queue", "desk", "dark", "/q/emails"),
            ("console-dead", "desk", "light", "/dead/webhooks.dead"),
            ("console-phone", "phone", "light", "/"),
        ):
            visit = Visit(browser, url, size, color_scheme=scheme, locale="en-GB")
            page = visit.go(path)
            expect(page.locator("tbody tr").first).to_be_visible()
            if path == "/":
                expect(page.locator(".spark path[d]:not([d=''])").nth(6)).to_be_attached()
            expect(page.locator("#live")).to_have_text("live")
            page.wait_for_timeout(2500)  # a picture with rates in it; nothing is asserted
            page.screenshot(path=folder / f"{name}.png")
            assert visit.bad == []
            visit.close()
        for name in ("console", "console-queue", "console-dead", "console-phone"):
            assert 8_000 < (folder / f"{name}.png").stat().st_size < 200_000


def test_the_picture_of_the_report_can_be_taken(tmp_path: Path) -> None:
    """`make pictures` reports on an hour of six queues by Spark; a test draws a page of a few numbers."""
    pytest.importorskip("pyspark")
    from miniq.spark.report.page import render
    from miniq.spark.report.tables import Span
    from tests.unit.test_report_page import tables

    kept = "MINIQ_PICTURES" in os.environ
    folder, page = (Path(os.environ["MINIQ_PICTURES"]) if kept else tmp_path), tmp_path / "out" / "report.html"
    if kept:
        env = environment(XDG_STATE_HOME=str(tmp_path / "state"))
        with staged(history, goes_on=False) as url:
            for command in (["archive", "lake", "--url", url], ["report", "lake", "out"]):
                run = [*MINIQ, "pipeline", *command, "--master", "local[2]"]
                subprocess.run(run, cwd=tmp_path, env=env, check=True, timeout=280)
    else:
        page.parent.mkdir()
        page.write_text(render(tables(), Span(100, 103, 1, 44), datetime(2026, 11, 15, tzinfo=UTC)), encoding="utf-8")
    with browsing() as browser:
        tab = browser.new_page(viewport={"width": 1180, "height": 1400}, color_scheme="light", locale="en-GB")
        tab.goto(page.as_uri())
        expect(tab.get_by_role("heading", name="Throughput")).to_be_visible()
        tab.screenshot(path=folder / "report.png")
    assert 8_000 < (folder / "report.png").stat().st_size < 300_000


def test_the_recording_of_a_worker_and_of_top_can_be_made(tmp_path: Path) -> None:
    """A worker and `miniq top` on terminals, while a program sends. `make pictures` records 30 seconds, a test 2."""
    folder, seconds = (Path(os.environ["MINIQ_PICTURES"]), 30) if "MINIQ_PICTURES" in os.environ else (tmp_path, 2)
    (tmp_path / "shop.py").write_text(SHOP)
    ended = threading.Event()
    with serving("memory:") as served, miniq.connect(served.url) as mq:
        chance = random.Random(7)

        def send() -> None:
            while not ended.wait(0.8):
                for _ in range(chance.choice((0, 0, 1, 4))):
                    name = chance.choice(("ann", "bob", "cid", "dora", "eve", "bounce"))
                    mq.queue("emails").send({"to": f"{name}@example.com"})
                mq.queue("invoices").send({"order": chance.randint(1000, 9999)})

        sender = threading.Thread(target=send)
        sender.start()
        try:
            arguments = ("shop:app", "--concurrency", "4")
            with (
                terminal(served.url, *arguments, command="worker", folder=tmp_path, rows=10, columns=134) as worker,
                terminal(served.url, "--interval", "1", rows=12, columns=134) as top,
            ):
                panes = [Pane("$ miniq worker shop:app --concurrency 4", worker), Pane("$ miniq top --interval 1", top)]
                top.wait(lambda lines: any(line.startswith("invoices") for line in lines))
                drawn = record(panes, seconds)
                worker.process.send_signal(signal.SIGTERM)
                assert worker.end() == 0
                top.type(b"q")
                assert top.end() == 0
        finally:
            ended.set()
            sender.join()
    path = folder / "terminal.svg"
    path.write_text(drawn, encoding="utf-8")
    assert ElementTree.fromstring(drawn).tag.endswith("svg")  # noqa: S314  our own
    assert "QUEUE" in drawn
    assert "emails" in drawn
    assert len(drawn) < 300_000
