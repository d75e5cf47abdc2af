"""Who consumes a queue, and its settings, in the console in a real browser, on a desk and on a phone."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Locator, expect

import miniq
from tests.acceptance.browser import Visit
from tests.serving import Served, serving

LONG = "worker-" + "x" * 90
MARKUP = "<b>ann</b>"
SERIES = ("ready", "leased", "delayed", "sent", "received", "acked", "failed", "dead")


@pytest.fixture(params=[("desk", "light"), ("phone", "dark")], ids="-".join)
def visit(request: pytest.FixtureRequest, browser: Browser, broker: miniq.Client, server: Served) -> Iterator[Visit]:
    size, scheme = request.param
    made = Visit(browser, server.url, size, color_scheme=scheme, bypass_csp=True, reduced_motion="reduce")
    yield made
    made.close()
    assert made.bad == []


def check(visit: Visit, name: str) -> None:
    """Nobody is shut out, nothing scrolls sideways; a picture of it is kept on demand."""
    if folder := os.environ.get("MINIQ_PICTURES"):
        scheme = visit.page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light'")
        visit.page.screenshot(path=Path(folder) / f"{name}-{visit.size}-{scheme}.png", full_page=True)
    found = Axe().run(visit.page, options={"resultTypes": ["violations"]}).response["violations"]
    bad = [(one["id"], one["nodes"][0]["html"][:200]) for one in found if one["impact"] in ("serious", "critical")]
    assert bad == []
    for scrolling in ("document.documentElement", "document.querySelector('main .scroll:has(caption), main .list')"):
        assert visit.page.evaluate(f"{scrolling}.scrollWidth <= {scrolling}.clientWidth"), "it scrolls sideways"


def test_a_queue_shows_its_consumers_and_how_long_its_messages_take(visit: Visit, broker: miniq.Client) -> None:
    queue = broker.queue("emails")
    queue.send_many(range(20))
    page = visit.go("/q/emails")
    card = page.locator(".consumers")
    expect(card.get_by_role("heading")).to_have_text("Consumers 0 seen in the last five minutes")
    expect(card.locator("dd")).to_have_text(["p50 \N{EN DASH}", "p99 \N{EN DASH}"] * 2)
    expect(card.get_by_text("No consumer in the last five minutes.")).to_be_visible()
    check(visit, "no-consumers")

    acked, failed, *_ = queue.receive(max=5, visibility_timeout=600, consumer=MARKUP)
    acked.ack()
    failed.fail("no such address")
    queue.receive(max=2, visibility_timeout=600, consumer=LONG)
    queue.receive(visibility_timeout=600)
    rows = page.get_by_role("table", name="Consumers of emails").locator("tbody tr")
    expect(rows).to_have_count(3)
    for row, (name, *numbers) in enumerate([(MARKUP, 3, 1, 1), (LONG, 2, 0, 0), ("unnamed", 1, 0, 0)]):
        expect(rows.nth(row).locator("td")).to_have_text([name, *map(str, numbers), re.compile(" ago$")])
    expect(card.get_by_role("heading")).to_have_text("Consumers 3 seen in the last five minutes")
    expect(card.locator("dt")).to_have_text(["wait", "processing"])
    expect(card.locator("dd")).to_have_text([re.compile(rf"^{p} [\d.]+ (ms|s|min|h)$") for p in ("p50", "p99")] * 2)
    check(visit, "consumers")

    broker.queue("emails").delete()
    expect(page.get_by_text("there is no queue 'emails'")).to_be_visible()
    visit.bad.clear()  # the browser notes the answer 404


def test_consumers_stand_next_to_the_charts_and_messages_are_not_far(
    browser: Browser, broker: miniq.Client, server: Served
) -> None:
    queue = broker.queue("emails")
    queue.send_many(range(20))
    for message in queue.receive(max=3, visibility_timeout=600, consumer="ann"):
        message.fail(f"KeyError: {message.body}", delay=600)
    visit = Visit(browser, server.url, "desk")
    page = visit.go("/q/emails")
    expect(page.locator(".consumers tbody")).to_contain_text("ann")
    expect(page.get_by_role("table", name="Failures of the last hour")).to_contain_text("KeyError")
    boxes = [one.bounding_box() for one in page.locator(".panels > *").all()]
    assert len({(round(box["y"]), round(box["height"])) for box in boxes if box}) == 1, "they stand next to each other"
    depth, flow = (one.bounding_box() for one in page.locator(".chart .area").all())
    assert depth is not None
    assert flow is not None
    assert (depth["y"], depth["height"]) == (flow["y"], flow["height"]), "the plots line up"
    message = page.get_by_role("table", name="Messages in emails").locator("tbody tr").nth(1).bounding_box()
    assert message is not None
    assert message["y"] + message["height"] < 860, "messages can be seen without scrolling"
    assert visit.bad == []
    visit.close()


def test_an_interval_that_has_only_begun_is_not_drawn_as_a_drop(
    browser: Browser, broker: miniq.Client, server: Served
) -> None:
    broker.queue("emails").send(1)
    visit = Visit(browser, server.url, "desk")
    hour = {"queues": [{"name": "emails", "series": {name: [4] * 240 for name in SERIES}}]}
    visit.page.route("**/v1/trends?queue=emails*", lambda route: route.fulfill(json=hour))
    page = visit.go("/q/emails")
    sent, ready = page.locator(".chart path.s0").last, page.locator(".chart path.s0").first
    expect(sent).to_have_attribute("d", re.compile("L"))
    expect(page.locator(".legend b").nth(3)).to_have_text(re.compile("^0"))  # no message per second, now
    assert len(set(heights(sent))) == 1, "what was measured, and nothing else"
    assert heights(ready)[-2:] == [0.0, 112.5], "4 of 4, and now 1"
    area = page.locator(".chart .area").last
    area.focus()
    area.press("ArrowRight")
    expect(area.locator(".tip")).to_have_text("last 15 s: sent 4.0, received 4.0, acked 4.0, failed 8.0")
    visit.close()


def heights(path: Locator) -> list[float]:
    return [float(y) for y in re.findall(r"[ML][\d.]+ ([\d.]+)", path.get_attribute("d") or "")]


def test_many_consumers_are_drawn_a_hundred_at_a_time(browser: Browser, broker: miniq.Client, server: Served) -> None:
    queue = broker.queue("emails")
    queue.send(1)
    for number in range(205):
        queue.receive(consumer=f"worker-{number:03d}")
    visit = Visit(browser, server.url, "desk")
    page = visit.go("/q/emails")
    rows = page.get_by_role("table", name="Consumers of emails").locator("tbody tr")
    expect(rows).to_have_count(100)
    visit.button("Show 100 more of 105 consumers")
    expect(rows).to_have_count(200)
    visit.button("Show 5 more consumers")
    expect(rows).to_have_count(205)
    assert visit.bad == []
    visit.close()


def test_consumers_are_shown_to_a_key_that_may_only_read_and_refused_to_one_that_may_not(browser: Browser) -> None:
    with serving("memory:") as served:
        with miniq.connect(served.url) as mq:
            boss = mq.create_key("boss", ["*"]).secret
        with miniq.connect(served.url, api_key=boss) as mq:
            reader, sender = (mq.create_key(verb, [f"{verb}:emails"]).secret for verb in ("read", "send"))
            mq.queue("emails").send(1)
            mq.queue("emails").receive(consumer="ann")
        for secret in (reader, sender):
            visit = Visit(browser, served.url, "phone")
            page = visit.go("/q/emails")
            page.get_by_label("API key", exact=True).fill(secret or "")
            visit.button("Sign in")
            if secret == reader:
                expect(page.get_by_role("table", name="Consumers of emails")).to_contain_text("ann")
            else:
                expect(page.get_by_text("Can't load this page")).to_be_visible()
                assert page.get_by_text("ann", exact=True).count() == 0
            visit.close()


def test_every_setting_is_in_the_form_and_only_those_that_change_are_sent(visit: Visit, broker: miniq.Client) -> None:
    queue = broker.queue("work")
    queue.configure(tags={"team": "shop"})
    given = queue.info().settings
    page = visit.go("/q/work")
    visit.button("Settings")
    fields = page.locator("form .fields").locator("input, select")
    shown = {name.partition(".")[0] for name in fields.evaluate_all("all => all.map((one) => one.name)")}
    assert shown == {*given.__struct_fields__} - {"tags", "sqs"}
    changes = {
        "Visibility timeout": "45",
        "Max receives": "",
        "Dead-letter queue": "lost",
        "Retention": "1 d",
        "Default delay": "1.5",
        "Dedup window": "60",
        "Max messages (0: no limit)": "1000",
        "Max bytes (0: no limit)": "65536",
        "Max in flight (0: no limit)": "7",
        "Max messages per second (0: no limit)": "2.5",
        "Keep results (0: not at all)": "1 h",
        "Claim retention": "120",
        "Retry after": "0.5",
        "Retry factor per failure": "3",
        "Longest retry": "60",
        "Retry jitter (0 to 1)": "0",
    }
    for label, text in changes.items():
        page.get_by_label(label, exact=True).fill(text)
    page.get_by_label("Paused").select_option("yes: messages wait")
    page.get_by_label("Messages of a group per receive").select_option("several, in order")
    page.get_by_label("History").select_option("events and bodies")
    check(visit, "settings")
    visit.button("Save settings")
    visit.toast("Saved.")
    assert queue.info().settings == msgspec.structs.replace(
        given,
        visibility_timeout=45,
        max_receives=None,
        dead_letter_queue="lost",
        retention=86400,
        delay=1.5,
        dedup_window=60,
        max_length=1000,
        max_bytes=65536,
        max_in_flight=7,
        rate=2.5,
        results=3600,
        claim_retention=120,
        retry=miniq.Retry(delay=0.5, factor=3, max=60, jitter=0),
        paused=True,
        group_batch=True,
        history="full",
    )
    queue.configure(visibility_timeout=90)
    page.get_by_label("Messages of a group per receive").select_option("one")
    visit.button("Save settings")
    expect(page.get_by_label("Visibility timeout", exact=True)).to_have_value("90 s")
    settings = queue.info().settings
    assert (settings.group_batch, settings.visibility_timeout) == (False, 90), "others' changes stay"
