"""Empty pages of the console teach: what Copy copies runs as it is, with the key put in on a broker that has keys."""

from __future__ import annotations

import subprocess

import pytest
from playwright.sync_api import Browser, expect

import miniq
from tests.acceptance.browser import Visit
from tests.serving import serving

PAGES = {
    "/": "Send your first message",
    "/q/default": "This queue is empty",
    "/dead": "No dead-letter queues",
    "/history": "No events found",
    "/claims": "No claims",
    "/schedules": "No schedules",
    "/topics": "No topics",
    "/topics/news": "No subscriptions",
}
CLIPBOARD = ["clipboard-read", "clipboard-write"]


def copied(visit: Visit, button: str) -> str:
    """What is in the clipboard after a press on a button."""
    visit.page.evaluate("navigator.clipboard.writeText('')")
    visit.page.get_by_role("button", name=button).first.click()
    visit.page.wait_for_function("navigator.clipboard.readText().then((text) => text !== '')")
    text = visit.page.evaluate("navigator.clipboard.readText()")
    assert isinstance(text, str)
    return text


@pytest.mark.parametrize("keyed", [False, True], ids=["open", "keyed"])
def test_every_empty_page_has_a_command_and_lines_of_python_that_work(browser: Browser, keyed: bool) -> None:
    with serving("memory:") as served:
        secret = ""
        with miniq.connect(served.url) as mq:
            if keyed:
                secret = mq.create_key("boss", ["*"]).secret or ""
        visit = Visit(browser, served.url, "desk", permissions=CLIPBOARD)
        page = visit.go("/")
        if keyed:
            page.get_by_label("API key", exact=True).fill(secret)
            visit.button("Sign in")
        found = {}
        for path, title in PAGES.items():
            if path == "/topics/news":
                with miniq.connect(served.url, api_key=secret or None) as mq:
                    mq.topic("news").configure()
            visit.go(path)
            expect(page.get_by_role("heading", name=title)).to_be_visible()
            found[path] = [copied(visit, "Copy the command"), copied(visit, "Copy the lines of Python")]
        for path, (command, lines) in found.items():
            assert ("KEY" in command, "KEY" in lines) == (keyed, keyed), path
            run = ["bash", "-c", command.replace("curl ", "curl -sSf ", 1).replace("KEY", secret)]
            done = subprocess.run(run, capture_output=True, text=True, timeout=30)
            assert (done.returncode, done.stderr) == (0, ""), (path, command)
            exec(compile(lines.replace("KEY", secret), path, "exec"), {})  # noqa: S102  the lines of the page
        with miniq.connect(served.url, api_key=secret or None) as mq:
            emails = mq.queue("emails").info()
            assert (emails.settings.max_receives, emails.settings.history) == (5, "events")
            assert (emails.counts.total, mq.queue("default").info().counts.total) == (2, 2)
            assert [schedule.name for schedule in mq.schedules()] == ["nightly"]
            assert [topic.name for topic in mq.topics()] == ["news", "orders"]
        visit.bad.clear()  # the refusals before the key was given
        visit.close()


def test_copy_also_works_where_the_browser_has_no_clipboard_for_pages(browser: Browser) -> None:
    with serving("memory:") as served:
        visit = Visit(browser, served.url, "desk", permissions=CLIPBOARD)
        visit.page.add_init_script(
            "window.board = navigator.clipboard; Object.defineProperty(navigator, 'clipboard', {})"
        )
        page = visit.go("/")
        page.get_by_role("button", name="Copy the command").click()
        expect(page.get_by_role("button", name="Copy the command")).to_have_text("Copied")
        assert page.evaluate("board.readText()") == page.locator("pre.curl").inner_text()
        assert visit.bad == []
        visit.close()
