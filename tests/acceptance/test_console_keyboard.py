"""The console's actions by keyboard alone: nothing here touches a pointer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

import miniq
from tests.acceptance.browser import Visit
from tests.serving import Served, serving

FOCUSED = """() => {
  const one = document.activeElement;
  const label = one.ariaLabel ?? one.labels?.[0]?.querySelector("span")?.textContent ?? one.textContent;
  const shown = getComputedStyle(one).outlineStyle !== "none" || one.matches("input, select, textarea");
  return [label.trim(), shown && one.checkVisibility()];
}"""
MOST = 90
"""Tabs from one end of a page to the other."""


@pytest.fixture
def visit(browser: Browser, broker: miniq.Client, server: Served) -> Iterator[Visit]:
    made = Visit(browser, server.url, "desk")
    yield made
    made.close()
    assert made.bad == []


def reach(page: Page, label: str) -> None:
    """Press Tab until something is focused, which must be seen to be."""
    for _ in range(MOST):
        page.keyboard.press("Tab")
        name, shown = page.evaluate(FOCUSED)
        if name == label:
            assert shown, f"nobody sees that {label} is focused"
            return
    pytest.fail(f"Tab does not reach {label}")


def press(page: Page, label: str) -> None:
    reach(page, label)
    page.keyboard.press("Enter")


def fill(page: Page, label: str, text: str) -> None:
    reach(page, label)
    page.keyboard.press("Control+A")
    page.keyboard.type(text)


def test_a_queue_is_changed_edited_discarded_and_purged(visit: Visit, broker: miniq.Client) -> None:
    queue = broker.queue("jobs")
    queue.send_many([{"n": n} for n in range(3)])
    page = visit.go("/q/jobs")
    expect(page.locator("td.cut")).to_have_count(3)
    press(page, "Settings")
    fill(page, "Visibility timeout", "90 s")
    press(page, "Save settings")
    visit.toast("Saved.")
    assert queue.info().settings.visibility_timeout == 90
    visit.go("/")
    visit.go("/q/jobs")
    expect(page.locator("td.cut")).to_have_count(3)
    [first, *_] = queue.peek()
    reach(page, f"Select {first.id}")
    page.keyboard.press("Space")
    press(page, "Discard 1 message")  # above: Tab goes round
    expect(page.locator("dialog")).to_be_visible()
    press(page, "Discard")
    visit.toast("Discarded 1 message.")
    expect(page.locator("td.cut")).to_have_count(2)
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("Message")
    press(page, "Edit")
    fill(page, "Body", '{"n": "mended"}')
    press(page, "Save")
    expect(page.locator("pre.body")).to_contain_text("mended")
    assert {"n": "mended"} in [message.body for message in queue.peek()]
    visit.go("/q/jobs")
    expect(page.locator("td.cut")).to_have_count(2)
    press(page, "Purge")
    fill(page, "Type the queue name to confirm", "jobs")
    page.keyboard.press("Enter")
    visit.toast("Purged 2 messages.")
    assert queue.info().counts.total == 0


def test_claims_are_released(visit: Visit, broker: miniq.Client) -> None:
    queue = broker.queue("lake")
    queue.send_many(range(4))
    queue.claims("spark").next(0)
    page = visit.go("/")
    expect(page.locator("#live")).to_have_text("live")
    page.keyboard.press("g")
    page.keyboard.press("c")
    expect(page.get_by_role("table", name="Claims")).to_contain_text("spark")
    press(page, "Release spark of lake")
    press(page, "Release")
    visit.toast("Released 4 messages.")
    assert queue.info().counts.ready == 4


def test_keys_are_made_and_revoked(browser: Browser) -> None:
    with serving("memory:") as served:
        visit = Visit(browser, served.url, "desk")
        page = visit.go("/keys")
        expect(page.get_by_text("No keys")).to_be_visible()
        for number, name in enumerate(("boss", "reader")):
            press(page, "New key")
            expect(page.get_by_role("heading", name="New key")).to_be_visible()
            fill(page, "Name", name)
            press(page, "Create")
            expect(page.get_by_label("Secret")).to_be_visible()
            press(page, "Done")
            expect(page.locator("tbody tr")).to_have_count(number + 1)
        reader = page.locator("tbody tr", has_text="reader").get_by_role("button")
        for _ in range(MOST):
            page.keyboard.press("Tab")
            if reader.evaluate("one => one === document.activeElement"):
                break
        page.keyboard.press("Enter")
        expect(page.locator("dialog")).to_contain_text("Revoke reader?")
        press(page, "Revoke")
        visit.toast("Revoked reader.")
        expect(page.locator("tbody tr")).to_have_count(1)
        assert visit.bad == []
        visit.close()
