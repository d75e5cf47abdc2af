"""Groups of dead letters in the console: of any size, at a rate, and told apart by what differs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

import miniq
from tests.acceptance.browser import Visit
from tests.serving import Served

MANY = 2100
"""More dead letters than the console reads to show groups."""


@pytest.fixture
def visit(browser: Browser, broker: miniq.Client, server: Served) -> Iterator[Visit]:
    made = Visit(browser, server.url, "desk", locale="en-GB")
    yield made
    made.close()
    assert made.bad == []


def die(queue: miniq.Queue, bodies: list[Any], error: str) -> None:
    """Messages become dead letters, a thousand with each call."""
    for start in range(0, len(bodies), 1000):
        queue.send_many(bodies[start : start + 1000])
        queue.fail(queue.receive(max=1000), error, dead=True)


def group(page: Page, title: str) -> Any:
    return page.locator("section.card", has=page.get_by_role("heading", name=title, exact=True))


def test_a_group_of_any_size_is_redriven_and_discarded_as_one(visit: Visit, broker: miniq.Client) -> None:
    queue = broker.queue("big")
    for place in range(2):  # the second half of each group is beyond what is read at first
        die(queue, list(range(MANY // 2)), "TimeoutError")
        die(queue, list(range(20)), f"KeyError: order {place}")
    page = visit.go("/dead/big.dead")
    expect(page.get_by_text("The first 2,000 messages in 2 groups.")).to_be_visible()
    expect(group(page, "KeyError: order 0").locator(".badge")).to_have_text("20 or more")
    visit.button("Discard group: rejected, from big: KeyError: order 0")
    expect(page.locator("dialog")).to_contain_text("Discard all messages of this group?")
    visit.button("Discard")
    visit.toast("Discarded 40 messages.")
    expect(page.locator("section.card")).to_have_count(1)
    assert broker.queue("big.dead").info().counts.total == MANY
    visit.button("Redrive group: rejected, from big: TimeoutError")
    asked: list[int] = []
    page.on("request", lambda one: asked.append(len(one.post_data_json["ids"])) if "redrive" in one.url else None)
    visit.button("Redrive")
    visit.toast("Moved 2,100 messages.")
    expect(page.get_by_text("No dead letters")).to_be_visible()
    assert [sum(asked), max(asked)] == [MANY, 500], "in bounded steps"
    assert [queue.info().counts.ready, broker.queue("big.dead").info().counts.total] == [MANY, 0]


def test_a_long_redrive_says_how_far_it_is_and_stops_when_its_dialog_is_closed(
    visit: Visit, broker: miniq.Client
) -> None:
    queue = broker.queue("big")
    die(queue, list(range(MANY)), "TimeoutError")
    page = visit.go("/dead/big.dead")
    visit.button("Redrive group: rejected, from big: TimeoutError")
    held: list[Any] = []  # the second step, until it was looked at
    steps = 0

    def slowly(route: Any) -> None:
        nonlocal steps
        steps += 1
        if steps == 2:
            held.append(route)
        else:
            route.continue_()

    page.route("**/redrive", slowly)
    visit.button("Redrive")
    expect(page.locator("dialog").get_by_role("status")).to_have_text("Moved 500 of 500 messages looked at…")
    visit.button("Cancel")
    page.wait_for_function("() => !document.querySelector('dialog')")
    held[0].continue_()
    visit.toast("Stopped. Moved 1,000 messages.")
    expect(page.get_by_text("1,100 messages in 1 group.")).to_be_visible()
    assert (steps, queue.info().counts.ready) == (2, 1000)


def test_a_group_is_redriven_at_a_rate(visit: Visit, broker: miniq.Client) -> None:
    queue = broker.queue("slow")
    die(queue, [1, 2, 3], "TimeoutError")
    die(queue, [4], "KeyError: 'a'")
    page = visit.go("/dead/slow.dead")
    visit.button("Redrive group: rejected, from slow: TimeoutError")
    page.get_by_label("Max messages per second").fill("0.01")
    with page.expect_request("**/redrive") as asked:
        visit.button("Redrive")
    visit.toast("Redrive started.")
    sent = asked.value.post_data_json
    assert (sent["rate"], len(sent["ids"])) == (0.01, 3)
    expect(page.get_by_text("3 messages in 2 groups.")).to_be_visible()
    progress = broker.queue("slow.dead").info().redrive
    assert progress is not None
    assert (progress.moved, progress.running) == (1, True), "one now, the next in 100 s"


def test_a_queue_that_does_not_exist_has_no_dead_letters_to_redrive(visit: Visit) -> None:
    page = visit.go("/dead/nosuch")
    expect(page.locator("main")).to_contain_text("there is no queue 'nosuch'")
    expect(page.get_by_role("button", name="Redrive all")).to_have_count(0)
    expect(page.locator(".toast")).to_have_count(0)
    visit.bad.clear()  # the browser notes the answer 404


def test_a_group_says_that_max_receives_was_exceeded(visit: Visit, broker: miniq.Client) -> None:
    queue = broker.queue("once")
    queue.configure(max_receives=1)
    queue.send(1)
    queue.fail(queue.receive(), "TimeoutError")
    page = visit.go("/dead/once.dead")
    expect(group(page, "TimeoutError")).to_contain_text("Exceeded max_receives in once")


def test_a_list_of_dead_letters_says_nothing_twice_and_shows_what_differs(visit: Visit, broker: miniq.Client) -> None:
    queue = broker.queue("mail")
    common = {"template": "order-confirmation", "tenant": "acme-europe", "subject": "Your order has shipped" * 3}
    die(queue, [common | {"order": n} for n in (17, 4711)], "TimeoutError")
    page = visit.go("/dead/mail.dead")
    section = group(page, "TimeoutError")
    expect(section.locator("thead th")).to_have_text(["Select", "Message", "Receives", "Died", "Edit"])
    expect(section.locator("td.cut")).to_have_text(
        ['{"template":"o…"order":17}', '{"template":"o…"order":4711}'], use_inner_text=True
    )
    for cell in section.locator("td.cut").all():
        assert cell.evaluate("one => one.scrollWidth <= one.clientWidth"), "it is not cut"
    row = section.locator("tbody tr").first
    expect(row.locator(".badge")).to_have_count(0)
    assert len(re.findall(r"\bago\b", row.inner_text())) == 1
    visit.go("/q/mail.dead")
    expect(page.get_by_role("table", name="Messages in mail.dead").locator("thead th")).to_have_text(
        ["", "Message", "Receives", "Died", "Details"]
    )
    expect(page.locator("tbody .badge")).to_have_count(0)
    page.locator("td.cut a").first.click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Message")
    expect(page.locator(".head .badge")).to_have_text("dead letter")
