"""The console on narrow phones: no page scrolls sideways, and no text is cut, whatever the names."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from playwright.sync_api import Browser, expect

import miniq
from tests.acceptance.browser import Visit
from tests.serving import Served

LONG = "orders-of-the-european-shop-and-its-partners"
CUT = """() => {
  const bad = document.documentElement.scrollWidth > innerWidth ? ["the page scrolls sideways"] : [];
  const text = (node) => `${node.tagName} ${node.textContent.slice(0, 60)}`;
  for (const node of document.querySelectorAll("main *")) {
    if (!node.checkVisibility() || node.closest(".visually-hidden, svg, thead")) continue;
    if (node.getBoundingClientRect().right > innerWidth + 0.5) bad.push(`beyond the edge: ${text(node)}`);
    const isInline = getComputedStyle(node).display === "inline";
    if (!isInline && node.scrollWidth > node.clientWidth + 1) bad.push(`cut: ${text(node)}`);
  }
  for (const input of document.querySelectorAll("main input[placeholder]")) {
    if (!input.checkVisibility()) continue;
    const style = getComputedStyle(input);
    const context = document.createElement("canvas").getContext("2d");
    context.font = style.font;
    const room = input.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
    if (context.measureText(input.placeholder).width > room) bad.push(`cut: ${input.placeholder}`);
  }
  const tab = document.querySelector("nav [aria-current]").getBoundingClientRect();
  if (tab.left < 0 || tab.right > innerWidth) bad.push("the current page is not visible in the menu");
  return bad;
}"""


@pytest.fixture
def visit(browser: Browser, broker: miniq.Client, server: Served) -> Iterator[Visit]:
    made = Visit(browser, server.url, "phone", timezone_id="America/New_York", locale="en-US")
    yield made
    made.close()
    for topic in broker.topics():
        broker.topic(topic.name).delete()
    for schedule in broker.schedules():
        broker.delete_schedule(schedule.name)
    assert made.bad == []


@pytest.mark.parametrize("width", [390, 320])
def test_no_page_is_cut_or_scrolls_sideways(visit: Visit, broker: miniq.Client, width: int) -> None:
    queue = broker.queue(LONG)
    queue.configure(history="events", max_receives=1)
    queue.send_many(range(3))
    for message in queue.receive(max=2, consumer="worker-eu-central-1-production-7f9c5d8b6c-x2k4q:12345"):
        message.fail("ValueError: the_address_of_this_order_is_in_no_country_that_we_know")
    broker.schedule(LONG, queue=LONG, cron="0 2 * * *", timezone="America/Argentina/Buenos_Aires", body=1)
    broker.schedule("once", queue=LONG, at=datetime.now(UTC) + timedelta(days=400), body=1)
    broker.run_schedule("once")
    topic = broker.topic(LONG)
    topic.subscribe(
        LONG, pattern="orders.*.created.#", filter={"country": ["de", "fr"], "total": [{"numeric": [">", 50]}]}
    )
    topic.publish({"a": 1}, key="orders.eu.created")
    visit.page.set_viewport_size({"width": width, "height": 844})
    pages = (
        "/",
        "/history",
        "/schedules",
        f"/schedules/{LONG}",
        "/schedules/once",
        "/keys",
        f"/q/{LONG}",
        "/topics",
        f"/topics/{LONG}",
    )
    cut = {}
    for path in pages:
        visit.page.goto("about:blank")
        page = visit.go(path)
        page.locator("h1" if path in ("/keys", f"/schedules/{LONG}") else "tbody tr:visible").first.wait_for()
        cut[path] = page.evaluate(CUT)
    assert cut == {path: [] for path in pages}


def test_rows_of_messages_say_why_they_failed(visit: Visit, broker: miniq.Client) -> None:
    queue = broker.queue("q")
    queue.send({"order": 7})
    queue.fail(queue.receive(), "KeyError: 'country'", delay=0)
    page = visit.go("/q/q")
    expect(page.get_by_text("failed: KeyError: 'country'")).to_be_visible()


def test_times_are_shown_with_24_hours(visit: Visit, broker: miniq.Client) -> None:
    at = datetime.now(UTC).replace(hour=19, minute=46, second=7, microsecond=0) + timedelta(days=9)
    broker.schedule("once", queue="q", at=at, body=1)
    page = visit.go("/schedules")
    shown = at.astimezone(ZoneInfo("America/New_York")).strftime("%H:%M:%S")
    expect(page.locator("tbody time").first).to_contain_text(f", {shown}")


def test_what_is_wrong_with_a_body_is_said_once(visit: Visit, broker: miniq.Client) -> None:
    broker.queue("q").configure()
    page = visit.go("/q/q")
    visit.button("Send")
    page.get_by_label("Body").fill('{"a": }')
    visit.button("Send")
    expect(page.get_by_role("alert")).to_have_text("The body is not valid JSON.")
    expect(page.locator("dialog").get_by_text("Unexpected token")).to_have_count(1)
