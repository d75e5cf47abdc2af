"""The page `/docs` in a real browser: every operation of the API is there and can be tried."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Locator, expect

import miniq
from tests.acceptance.browser import Visit, both_sizes
from tests.serving import Served

REFUSED = "Failed to load resource: the server responded with a status of 4"
"""What Chromium itself logs of a reply that refuses a request."""


@pytest.fixture
def visit(size: str, browser: Browser, broker: miniq.Client, server: Served) -> Iterator[Visit]:
    made = Visit(browser, server.url, size)
    made.page.goto(f"{server.url}/docs")
    yield made
    made.close()
    assert [said for said in made.bad if not said.startswith(REFUSED)] == []


def opened(visit: Visit, operation: str) -> Locator:
    """An operation, unfolded."""
    found = visit.page.locator(f"details#{operation}")
    found.locator("summary").click()
    return found


def tried(operation: Locator, **fields: str) -> str:
    """What the broker replies when the form is sent with these fields."""
    name = operation.get_attribute("id")
    for field, value in fields.items():
        operation.locator(f"#{name}-{field}").fill(value)
    operation.get_by_role("button", name="Try it").click()
    reply = operation.locator("pre.reply")
    expect(reply).to_have_text(re.compile(r"^\d{3} "))
    return reply.inner_text()


@both_sizes
def test_it_shows_every_operation(visit: Visit, server: Served) -> None:
    with urllib.request.urlopen(f"{server.url}/openapi.json") as answer:  # noqa: S310
        document = json.load(answer)
    wanted = {one["operationId"] for methods in document["paths"].values() for one in methods.values()}
    expect(visit.page.locator("details")).to_have_count(len(wanted))
    shown = visit.page.locator("details").evaluate_all("all => all.map(one => one.id)")
    assert set(shown) == wanted
    expect(visit.page.locator("#about")).to_contain_text(document["info"]["version"])
    unfold = "(all, open) => all.forEach((one) => { one.open = open })"
    visit.page.locator("details").evaluate_all(unfold, True)
    expect(visit.page.locator("details form:visible")).to_have_count(len(wanted))
    assert visit.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    visit.page.locator("details").evaluate_all(unfold, False)
    assert "`" not in visit.page.locator("body").inner_text()
    assert Axe().run(visit.page).response["violations"] == []


def test_fields_errors_and_headers_of_a_call_are_shown(visit: Visit, broker: miniq.Client) -> None:
    send = opened(visit, "send")
    expect(send.locator("tr", has_text=re.compile("^recipient"))).to_contain_text("only the consumer with this name")
    expect(send.locator(".errors tr", has_text="422")).to_contain_text("idempotency key")
    fields = {"queue": "emails", "Idempotency-Key": "order-77", "body": '{"body": 1}'}
    first, second = tried(send, **fields), tried(send, **fields)
    assert first == second
    assert first.startswith("201 ")


@both_sizes
def test_a_reply_of_each_kind_is_shown(visit: Visit, broker: miniq.Client) -> None:
    sent = tried(opened(visit, "send"), queue="emails", body='{"body": {"to": "ann"}}')
    assert sent.startswith("201 ")
    (id,) = json.loads(sent.partition("\n")[2])["ids"]

    received = tried(opened(visit, "receive"), queue="emails")
    assert json.loads(received.partition("\n")[2])["messages"][0]["id"] == id

    removed = tried(opened(visit, "remove"), queue="emails", id=broker.queue("other").send(1))
    assert removed.startswith("404 ")
    assert '"code": "message_not_found"' in removed
    assert tried(opened(visit, "delete_queue"), queue="other").strip() == "204 No Content"

    stream = tried(opened(visit, "events"), interval="0.5", count="2")
    assert "text/event-stream" in opened_headings(visit, "events")
    twice = re.compile("event: stats.*event: stats", re.DOTALL)
    expect(visit.page.locator("details#events pre.reply")).to_contain_text(twice)
    assert stream.startswith("200 ")

    assert tried(opened(visit, "report")).startswith("404 ")
    assert "text/html" in opened_headings(visit, "report")


def opened_headings(visit: Visit, operation: str) -> str:
    return " ".join(visit.page.locator(f"details#{operation} h3").all_inner_texts())


def test_a_stream_without_an_end_can_be_stopped(visit: Visit) -> None:
    events = opened(visit, "events")
    tried(events, interval="0.5")
    reply = events.locator("pre.reply")
    expect(reply).to_contain_text("event: stats")
    events.get_by_role("button", name="Stop").click()
    expect(reply).to_contain_text("(stopped)")
    expect(events.get_by_role("button", name="Try it")).to_be_enabled()


def test_a_request_begins_with_what_it_needs(visit: Visit, broker: miniq.Client) -> None:
    broker.queue("default").send(1)
    ack = opened(visit, "ack")
    assert json.loads(ack.locator("textarea").input_value()) == {"leases": [{"id": "", "receipt": ""}]}
    assert "missing" in tried(ack)


def test_a_link_to_an_operation_opens_it(visit: Visit, server: Served) -> None:
    visit.page.goto("about:blank")
    visit.page.goto(f"{server.url}/docs#receive")
    expect(visit.page.locator("details#receive form")).to_be_visible()


def test_the_key_is_sent_with_each_request(visit: Visit) -> None:
    visit.page.get_by_label("API key").fill("mq_a_key")
    with visit.page.expect_request("**/v1/queues") as asked:
        tried(opened(visit, "list_queues"))
    assert asked.value.header_value("authorization") == "Bearer mq_a_key"
