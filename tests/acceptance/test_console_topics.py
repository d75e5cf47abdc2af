"""The page of topics in a real browser, on a desk and on a phone."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

import miniq
from tests.acceptance.browser import SIZES, Visit, both_sizes
from tests.acceptance.test_console import check
from tests.serving import Served, serving


@pytest.fixture
def visit(size: str, browser: Browser, broker: miniq.Client, server: Served) -> Iterator[Visit]:
    made = Visit(browser, server.url, size)
    yield made
    made.close()
    # Chromium reports a refusal that the page shows.
    assert [text for text in made.bad if "400 (Bad Request)" not in text] == []


def picture(visit: Visit, name: str) -> None:
    """Keep a picture to look at, where MINIQ_SCREENSHOTS names a folder."""
    if folder := os.environ.get("MINIQ_SCREENSHOTS"):
        visit.page.screenshot(path=f"{folder}/{name}-{SIZES[visit.size][0]}.png", full_page=True)


def fits(page: Page) -> bool:
    return bool(page.evaluate("document.documentElement.scrollWidth <= innerWidth"))


def test_topics_are_listed_with_subscriptions_and_rates(visit: Visit, broker: miniq.Client) -> None:
    page = visit.go("/topics")
    expect(page.get_by_text("No topics")).to_be_visible()
    broker.topic("orders").subscribe("billing", pattern="orders.*.created")
    broker.topic("orders").subscribe("audit", "log")
    broker.topic("users").configure()
    broker.topic("orders").publish_many(range(50))
    cells = page.locator("tbody tr").first.locator("td")
    expect(cells).to_have_text(["orders", "2", "2", "10", "10", "0"])
    expect(page.locator("tbody tr")).to_have_count(2)
    check(visit, "topics")
    assert fits(page)
    picture(visit, "topics")
    page.get_by_role("link", name="orders").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("orders")


@both_sizes
def test_a_message_is_tried_against_the_filters_without_being_sent(visit: Visit, broker: miniq.Client) -> None:
    topic = broker.topic("orders")
    topic.subscribe("billing", pattern="orders.*.created")
    topic.subscribe("german", "de", filter={"country": ["de", {"prefix": "at-"}]})
    topic.subscribe("all", "log")
    page = visit.go("/topics/orders")
    matches = page.locator("tbody td[data-label=Matches] .badge")
    expect(matches).to_have_text(["yes", "no", "no"])  # all, billing, german
    page.get_by_label("Key", exact=True).fill("orders.7.created")
    expect(matches).to_have_text(["yes", "yes", "no"])
    expect(page.get_by_text("Would be copied to 2 queues: log, billing")).to_be_visible()
    page.get_by_label("Headers, one per line").fill("country: at-9\nx: <b>y</b>")
    expect(matches).to_have_text(["yes", "yes", "yes"])
    page.get_by_label("Key", exact=True).fill("users.made")
    expect(matches).to_have_text(["yes", "no", "yes"])
    expect(page.get_by_text("pattern 'orders.*.created' does not match the key 'users.made'")).to_be_visible()
    check(visit, "topic")
    picture(visit, "topic")
    assert fits(page)
    page.get_by_label("Headers, one per line").fill("nonsense")
    expect(page.get_by_text("use NAME: VALUE")).to_be_visible()
    assert [info.counts.total for info in broker.queues()] == [0, 0, 0, 0]


@both_sizes
def test_subscriptions_are_made_changed_and_removed_and_messages_published(visit: Visit, broker: miniq.Client) -> None:
    page = visit.go("/topics")
    visit.button("New topic")
    page.get_by_label("Name").fill("no name")
    visit.button("Create")
    expect(page.locator("dialog .error")).to_contain_text("is not a topic name")
    page.get_by_label("Name").fill("orders")
    visit.button("Create")
    expect(page.get_by_text("No subscriptions")).to_be_visible()
    visit.button("Subscribe")
    page.get_by_label("Name").fill("billing")
    page.get_by_label("Pattern").fill("a*")
    page.get_by_label("Filter").fill("{")
    visit.button("Subscribe")
    expect(page.locator("dialog .error")).to_contain_text("filter: ")
    page.get_by_label("Filter").fill('{"country": ["de"]}')
    visit.button("Subscribe")
    expect(page.locator("dialog .error")).to_contain_text("mixes a wildcard with text")
    page.get_by_label("Pattern").fill("orders.#")
    check(visit, "subscribe")
    picture(visit, "subscribe")
    visit.button("Subscribe")
    visit.toast("Queue billing is subscribed.")
    [subscription] = broker.topic("orders").info().subscriptions
    assert subscription == miniq.Subscription("billing", "billing", "orders.#", {"country": ["de"]})
    visit.button("Change billing")
    page.get_by_label("Filter").fill("")
    visit.button("Save")
    expect(page.locator("tbody tr")).to_contain_text("any headers")
    visit.button("Publish")
    page.locator("dialog summary").click()
    page.get_by_label("Key", exact=True).last.fill("orders.7.created")
    visit.button("Publish")
    visit.toast("Published to 1 queue.")
    [message] = broker.queue("billing").peek()
    assert (message.body, message.key, message.topic) == ({"hello": "world"}, "orders.7.created", "orders")
    visit.button("Remove billing")
    visit.button("Remove")
    expect(page.get_by_text("No subscriptions")).to_be_visible()
    visit.button("Delete")
    visit.button("Delete")
    visit.toast("Deleted orders.")
    expect(page.get_by_text("No topics")).to_be_visible()
    assert broker.topics() == []


def test_a_filter_of_the_body_is_shown_tried_and_kept_by_changes(visit: Visit, broker: miniq.Client) -> None:
    big = {"total": [{"numeric": [">", 100]}]}
    broker.topic("orders").subscribe("billing", filter=big, filter_on="body", envelope={"TopicArn": "a"})
    page = visit.go("/topics/orders")
    row = page.locator("tbody tr")
    expect(row).to_contain_text('body {"total"')
    expect(row).to_contain_text("does not match the body")
    page.get_by_label("Body").fill("{")
    expect(page.locator(".error", has_text="body: ")).to_be_visible()
    page.get_by_label("Body").fill("[1]")
    expect(page.locator(".error", has_text="not a JSON object")).to_be_visible()
    page.get_by_label("Body").fill('{"total": 120}')
    expect(page.get_by_text("Would be copied to 1 queue: billing")).to_be_visible()
    visit.button("Change billing")
    page.get_by_label("Pattern").fill("orders.#")
    visit.button("Save")
    visit.toast("Queue billing is subscribed.")
    [subscription] = broker.topic("orders").info().subscriptions
    assert (subscription.pattern, subscription.filter, subscription.filter_on) == ("orders.#", big, "body")
    assert subscription.envelope == {"TopicArn": "a"}


def test_a_key_that_may_only_read_a_topic_changes_nothing(browser: Browser) -> None:
    with serving("memory:") as served:
        with miniq.connect(served.url) as mq:
            mq.topic("orders").subscribe("billing")
            secret = mq.create_key("admin", ["*"]).secret
        with miniq.connect(served.url, api_key=secret) as mq:
            reader = mq.create_key("reader", ["read:orders"]).secret
        visit = Visit(browser, served.url, "desk")
        visit.context.add_init_script(f"sessionStorage.setItem('miniq.key', '{reader}')")
        page = visit.go("/topics/orders")
        expect(page.locator("tbody tr")).to_have_count(1)
        for name in ("Publish", "Subscribe", "Delete", "Change billing", "Remove billing"):
            expect(page.get_by_role("button", name=name)).to_have_count(0)
        visit.close()


def test_a_publication_in_the_history_leads_to_its_topic(visit: Visit, broker: miniq.Client) -> None:
    topic = broker.topic(f"news-{visit.size}")
    topic.configure(history="events")
    topic.subscribe("inbox")
    topic.publish({"n": 1})
    page = visit.go(f"/history?event=published&queue={topic.name}")
    expect(page.get_by_label("Event")).to_have_value("published")
    rows = page.get_by_role("table", name="Events").locator("tbody tr.event")
    expect(rows).to_have_count(1)
    expect(rows.locator("[data-label=Queue]")).to_have_text(f"topic {topic.name}")
    expect(rows.locator("[data-label=Message]")).to_have_text("1 message")
    rows.get_by_role("link", name=topic.name).click()
    expect(page.get_by_role("heading", level=1)).to_have_text(topic.name)
