"""The console's pages of schedules in a real browser, on a desk and on a phone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, expect

import miniq
from tests.acceptance.browser import Visit, both_sizes
from tests.serving import Served, serving

TOKYO = ZoneInfo("Asia/Tokyo")


@pytest.fixture
def mq(broker: miniq.Client) -> Iterator[miniq.Client]:
    yield broker
    for schedule in broker.schedules():
        broker.delete_schedule(schedule.name)


@pytest.fixture
def visit(size: str, browser: Browser, mq: miniq.Client, server: Served) -> Iterator[Visit]:
    """A tab on that broker, somewhere in Tokyo."""
    made = Visit(browser, server.url, size, timezone_id="Asia/Tokyo", locale="en-GB", bypass_csp=True)
    yield made
    made.close()
    assert made.bad == []


def fill(mq: miniq.Client) -> None:
    """Schedules in every state."""
    mq.queue("full").configure(max_length=1)
    mq.queue("full").send(0)
    mq.schedule("nightly-report", queue="reports", cron="0 3 * * mon-fri", timezone="Europe/Berlin", body={"n": 1})
    mq.schedule("poll", queue="full", every=0.5, body="x")
    mq.schedule("launch", queue="emails", at=datetime.now(UTC) + timedelta(days=9), body={"template": "launch"})
    mq.schedule("weekly", queue="reports", cron="0 9 * * mon", body=1, paused=True, headers={"lang": "de"})


def check(visit: Visit, name: str) -> None:
    """Nobody is shut out, nothing scrolls sideways; a picture of it is kept on demand."""
    if folder := os.environ.get("MINIQ_PICTURES"):
        visit.page.screenshot(path=Path(folder) / f"{name}-{visit.size}.png", full_page=True)
    found = Axe().run(visit.page).response["violations"]
    bad = [(one["id"], one["nodes"][0]["html"][:200]) for one in found if one["impact"] in ("serious", "critical")]
    assert bad == []
    assert visit.page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "it scrolls sideways"


def test_schedules_are_shown_in_local_time_run_and_paused(visit: Visit, mq: miniq.Client) -> None:
    fill(mq)
    page = visit.go("/schedules")
    expect(page.get_by_text("Times are local: Asia/Tokyo.")).to_be_visible()
    row = page.locator("tbody tr", has=page.get_by_role("link", name="nightly-report", exact=True))
    local = mq.get_schedule("nightly-report").next[0].astimezone(TOKYO)
    expect(row.locator("[data-label=Next] time")).to_have_text(f"{local.day} {local:%b %Y, %H:%M:%S}")
    failing = page.locator("tbody tr", has=page.get_by_role("link", name="poll", exact=True))
    expect(failing.locator("[data-label=Last]")).to_contain_text("max_length: queue 'full' holds 1 of at most 1")
    check(visit, "schedules")
    row.get_by_role("button", name="Run now").click()
    visit.toast("nightly-report: sent now.")
    [message] = mq.queue("reports").receive(wait=5)
    assert message.body == {"n": 1}
    expect(row.locator("[data-label=Last]")).to_contain_text("run")
    row.get_by_role("button", name="Pause").click()
    visit.toast("nightly-report paused.")
    assert mq.get_schedule("nightly-report").paused
    expect(row.locator("[data-label=Next]")).to_have_text("paused")
    row.get_by_role("button", name="Resume").click()
    visit.toast("nightly-report resumed.")
    mq.delete_schedule("launch")
    expect(page.get_by_role("link", name="launch", exact=True)).to_have_count(0)


@both_sizes
def test_one_schedule_has_its_next_moments_and_last_results(visit: Visit, mq: miniq.Client) -> None:
    fill(mq)
    mq.run_schedule("nightly-report")
    page = visit.go("/schedules")
    page.get_by_role("link", name="nightly-report", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_have_text("nightly-report")
    expect(page.locator("ol.timeline li")).to_have_count(5)
    local = mq.get_schedule("nightly-report").next[4].astimezone(TOKYO)
    expect(page.locator("ol.timeline time").nth(4)).to_have_text(f"{local.day} {local:%b %Y, %H:%M:%S}")
    expect(page.locator("pre.body")).to_have_text('{\n  "n": 1\n}')
    expect(page.locator("tbody tr")).to_have_count(1)
    check(visit, "schedule")
    visit.button("Run now")
    expect(page.locator("tbody tr")).to_have_count(2)
    visit.button("Pause")
    expect(page.locator("dl.facts")).to_contain_text("paused")
    visit.button("Delete")
    visit.button("Delete")
    visit.toast("Deleted nightly-report.")
    expect(page.get_by_role("heading", level=1)).to_have_text("Schedules")
    assert "nightly-report" not in [schedule.name for schedule in mq.schedules()]


def test_a_schedule_by_period_has_a_page_and_its_body_is_shown_as_it_was_written(
    visit: Visit, mq: miniq.Client
) -> None:
    mq.schedule("tick", queue="reports", every=600, body={"rate": 1.0})
    page = visit.go("/schedules/tick")
    expect(page.locator("dl.facts")).to_contain_text("every 10 min")
    expect(page.locator("pre.body")).to_have_text('{\n  "rate": 1.0\n}')
    visit.button("Pause")
    expect(page.locator("dl.facts")).to_contain_text("paused")
    expect(page.locator("pre.body")).to_have_text('{\n  "rate": 1.0\n}')


def test_a_schedule_of_a_topic_says_into_how_many_queues_it_went(visit: Visit, mq: miniq.Client) -> None:
    mq.schedule("news", topic="unheard", every=3600, body=1)
    mq.run_schedule("news")
    page = visit.go("/schedules")
    row = page.locator("tbody tr", has=page.get_by_role("link", name="news", exact=True))
    expect(row.locator("[data-label=To]")).to_have_text("topic unheard")
    expect(row.locator("[data-label=Last]")).to_contain_text("in 0 queues")
    row.get_by_role("link", name="unheard").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("unheard")


def test_without_schedules_it_says_how_to_make_one(visit: Visit) -> None:
    page = visit.go("/schedules")
    expect(page.get_by_text("No schedules")).to_be_visible()
    expect(page.locator(".curl")).to_contain_text(f"curl -X PUT {visit.url}/v1/schedules/nightly")
    check(visit, "no-schedules")


def test_a_key_that_may_only_read_sees_no_buttons(browser: Browser) -> None:
    with serving("memory:") as served:
        with miniq.connect(served.url) as mq:
            secret = mq.create_key("admin", ["*"]).secret
        with miniq.connect(served.url, api_key=secret) as mq:
            fill(mq)
            reading = mq.create_key("reader", ["read:reports", "manage:reports", "*:emails"]).secret
        visit = Visit(browser, served.url, "desk")
        page = visit.go("/schedules")
        page.get_by_label("API key", exact=True).fill(reading or "")
        visit.button("Sign in")
        expect(page.locator("tbody tr")).to_have_count(3)
        row = page.locator("tbody tr", has=page.get_by_role("link", name="launch", exact=True))
        expect(row.get_by_role("button")).to_have_count(2)
        expect(page.locator("tbody").get_by_role("button")).to_have_count(2)
        page.get_by_role("link", name="weekly", exact=True).click()
        expect(page.get_by_role("heading", level=1)).to_have_text("weekly")
        expect(page.locator(".actions button")).to_have_count(0)
        visit.close()
