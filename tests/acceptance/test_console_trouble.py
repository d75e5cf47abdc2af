"""The console at three in the morning: what is wrong, why, and what can be done about it, in a real browser."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, Route, expect

import miniq
from miniq.celery.summary import task_of
from tests.acceptance.browser import Visit
from tests.acceptance.celery_kit import call, environment
from tests.acceptance.staged import gone, graded, staged, trouble

WORDS = {
    "orders": r"^447 ready, no consumer for 1\d min$",
    "payments": r"^failing: 1 in 3 of the last \d+ attempts: ValueError: no such card$",
    "etl": r"^claim of group nightly stuck for 1\d min: 25 messages$",
    "paused": r"^paused: 7 messages wait$",
}
CELERY = {
    "task": "shop.add",
    "argsrepr": "(1, 2)",
    "kwargsrepr": "{'z': 3}",
    "retries": "1",
    "eta": "2027-01-01T00:00:00Z",
}
DRAMATIQ = {"actor_name": "send_mail", "args": ["a@b.c"], "kwargs": {"n": 1}, "options": {"retries": 2}}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with staged(trouble, goes_on=False) as address:
        yield address


@pytest.fixture
def mq(url: str) -> Iterator[miniq.Client]:
    with miniq.connect(url) as client:
        yield client


@pytest.fixture
def visit(browser: Browser, url: str) -> Iterator[Visit]:
    made = Visit(browser, url, "desk", locale="en-GB")
    yield made
    made.close()
    assert made.bad == []


def row(page: Page, queue: str) -> Any:
    link = page.get_by_role("link", name=queue, exact=True)
    return page.get_by_role("table", name="Queues").locator("tbody tr", has=link)


def fail(queue: Any, error: str, dead: bool = True) -> None:
    for message in queue.receive(max=10, consumer="ann"):
        message.fail(error, dead=dead)


@pytest.mark.parametrize("size", ["desk", "phone"])
def test_the_overview_alone_says_what_is_wrong_with_each_queue(browser: Browser, url: str, size: str) -> None:
    visit = Visit(browser, url, size)
    page = visit.go("/")
    for queue, words in WORDS.items():
        expect(row(page, queue).locator(".words li").first).to_have_text(re.compile(words))
    expect(row(page, "fine").locator(".words")).to_be_hidden()
    said = page.locator(".status li")
    expect(page.locator(".status b")).to_have_text("4 queues need attention:")
    for line in (
        r"^orders: 447 ready, no consumer for 1\d min$",
        r"^payments: failing: 1 in 3 of the last \d+ attempts$",
        r"^etl: claim of group nightly stuck for 1\d min: 25 messages$",
    ):
        expect(said.filter(has_text=re.compile(line))).to_have_count(1)
    order = page.locator("tbody td.name > a").all_inner_texts()
    assert {"orders", "payments", "etl"} < set(order[: order.index("paused")]), "problems come first"
    assert order.index("paused") < order.index("fine")
    assert visit.bad == []
    visit.close()


def test_what_fails_now_and_then_is_told_from_what_stands_still(browser: Browser) -> None:
    with staged(graded, goes_on=False) as address:
        visit = Visit(browser, address, "desk")
        page = visit.go("/")
        seldom, often, late = (row(page, name).locator(".words li") for name in ("seldom", "often", "late"))
        expect(seldom).to_have_text("some fail: 1 in 8 of the last 40 attempts: KeyError: 'country'")
        expect(often).to_have_text("failing: 1 in 2 of the last 40 attempts: KeyError: 'country'")
        expect(late).to_have_text(re.compile(r"^40 ready for 12 min, no consumer for 55 min$"))
        red, amber, other = (line.evaluate("one => getComputedStyle(one).color") for line in (often, seldom, late))
        assert red == other != amber
        expect(page.locator(".status")).to_have_text(
            re.compile(r"^2 queues need attention; in 1 more, some work fails:")
        )
        expect(page.locator(".status li")).to_have_count(2)
        names = page.locator("tbody td.name > a").all_inner_texts()
        assert names == ["late", "often", "seldom", "default"], "what stands still comes first"
        assert visit.bad == []
        visit.close()


def test_consumers_that_have_died_are_not_counted_where_there_is_no_consumer(browser: Browser) -> None:
    with staged(gone, goes_on=False) as address:
        visit = Visit(browser, address, "desk")
        page = visit.go("/")
        expect(row(page, "jobs").locator(".words li")).to_have_text("2 ready, no consumer for 4 min")
        expect(row(page, "jobs").locator("[data-label=Consumers]")).to_have_text("0")
        page = visit.go("/q/jobs")
        expect(page.locator(".consumers h2")).to_have_text("Consumers 2 seen in the last five minutes")
        assert visit.bad == []
        visit.close()


def test_dead_letters_stand_with_their_queue_and_are_not_ready(visit: Visit, mq: miniq.Client) -> None:
    queue = mq.queue("faxes")
    queue.send_many(range(3))
    fail(queue, "NoPaper: tray 1")
    page = visit.go("/")
    faxes = row(page, "faxes")
    drawn = re.compile(r"^M0\.0 .*L110\.0 [\d.]+$")  # of a queue that is seconds old
    expect(faxes.locator(".spark path").last).to_have_attribute("d", drawn)
    line = faxes.locator(".words .dead")
    expect(line).to_contain_text(re.compile(r"^3 dead letters, the last \S+ s ago: NoPaper: tray 1"))
    expect(faxes.locator("[data-label=Dead]")).to_have_text("3")
    expect(row(page, "faxes.dead")).to_have_count(0)
    shown = int(page.locator(".tile", has_text="ready").locator("b").inner_text())
    assert shown == sum(info.counts.ready for info in mq.queues() if not info.name.endswith(".dead"))
    line.get_by_role("button").focus()
    page.keyboard.press("Enter")
    expect(page.locator("dialog")).to_contain_text("Redrive 3 messages?")
    page.get_by_label("Max messages per second").fill("1000")
    page.keyboard.press("Enter")
    visit.toast("Redrive started.")
    expect(faxes.locator("[data-label=Ready]")).to_have_text("3")
    expect(line).to_have_count(0)
    queue.delete()


def test_a_queue_shows_why_it_fails_and_charts_that_can_be_read(visit: Visit) -> None:
    page = visit.go("/q/payments")
    expect(page.locator(".words")).to_have_text(re.compile(WORDS["payments"]))
    errors = page.get_by_role("table", name="Failures of the last hour").locator("tbody tr")
    expect(errors).to_have_count(1)
    expect(errors.locator("td").nth(1)).to_have_text("30")
    errors.locator("summary").click()
    expect(errors.locator("pre")).to_contain_text('File "pay.py", line 7, in pay')
    chart = page.locator(".chart").first
    expect(chart.locator(".ticks span")).to_have_text(["100", "50", "0"])
    expect(chart.locator(".axis span").last).to_have_text("now")
    expect(page.locator(".chart").last).to_contain_text("messages per second")
    chart.locator(".area").hover()
    expect(chart.locator(".tip")).to_be_visible()
    expect(chart.locator(".tip")).to_have_text(
        re.compile(r"^\d\d:\d\d, \d+ min ago: ready \d+, in-flight 0, delayed \d+$")
    )
    page.locator("h1").hover()
    expect(chart.locator(".tip")).to_be_hidden()
    chart.locator(".area").focus()
    page.keyboard.press("ArrowLeft")
    expect(chart.get_by_role("status")).to_have_text(re.compile(r"ready \d+, in-flight 0"))
    visit.button("Pause")
    visit.toast("Paused payments")
    expect(page.locator(".head .badge")).to_have_text("paused")
    visit.button("Resume")
    visit.toast("Resumed payments.")


def test_dead_letters_are_grouped_by_error_edited_redriven_and_discarded(visit: Visit, mq: miniq.Client) -> None:
    queue = mq.queue("letters")
    for error in ("KeyError: order 17\n\n  line 3", "KeyError: order 4711\n\n  line 3", "TimeoutError"):
        queue.send({"address": error})
        fail(queue, error)
    page = visit.go("/dead/letters.dead")
    expect(page.locator("section.card")).to_have_count(2)
    group = page.locator("section.card").first
    expect(group.get_by_role("heading")).to_have_text("KeyError: order 4711")
    expect(group).to_contain_text("Rejected in letters")
    group.get_by_text("Traceback").click()
    expect(group.locator("pre")).to_contain_text("line 3")
    group.get_by_role("button", name=re.compile("^Edit and redrive")).first.click()
    page.get_by_label("Body").first.fill('{"address": "mended"}')
    visit.button("Save and redrive")
    visit.toast("Moved back to letters.")
    [mended] = queue.receive()
    assert mended.body == {"address": "mended"}
    mended.ack()
    expect(page.get_by_text("2 messages in 2 groups.")).to_be_visible()
    visit.go("/q/letters.dead")
    expect(page.locator(".tile").first).to_have_text("2dead letters")
    expect(page.locator("[data-label=Receives]").first).to_have_text("1")
    visit.go("/dead/letters.dead")
    visit.button("Redrive group: rejected, from letters: TimeoutError")
    visit.button("Redrive")
    visit.toast("Moved 1 message.")
    visit.button("Discard group: rejected, from letters: KeyError: order 4711")
    expect(page.locator("dialog")).to_contain_text("This can't be undone.")
    visit.button("Discard")
    visit.toast("Discarded 1 message.")
    expect(page.get_by_text("No dead letters")).to_be_visible()
    assert [queue.info().counts.ready, mq.queue("letters.dead").info().counts.total] == [1, 0]
    queue.delete()


def test_messages_are_discarded_in_bulk(visit: Visit, mq: miniq.Client) -> None:
    queue = mq.queue("bulk")
    queue.send_many(range(5))
    page = visit.go("/q/bulk")
    expect(page.locator("tbody tr td.cut")).to_have_count(5)
    page.get_by_label("Select all messages shown").check()
    page.locator("td.box input").first.uncheck()
    visit.button("Discard 4 messages")
    visit.button("Discard")
    visit.toast("Discarded 4 messages.")
    expect(page.locator("tbody tr td.cut")).to_have_count(1)
    assert queue.info().counts.total == 1
    queue.delete()


def test_claims_of_all_queues_come_with_one_request_and_are_released(visit: Visit, mq: miniq.Client) -> None:
    queue = mq.queue("lake")
    queue.send_many(range(8))
    queue.claims("spark").next(0, max_messages=6)
    page = visit.page
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if "/claims" in request.url else None)
    visit.go("/claims")
    expect(page.locator("tbody tr")).to_have_count(2)
    assert [one for one in asked if "/v1/" in one] == [f"{visit.url}/v1/claims"]
    expect(page.locator("tbody tr", has_text="nightly").locator("td.bad")).to_have_text(re.compile("^1. min$"))
    visit.button("Release spark of lake")
    expect(page.locator("dialog")).to_contain_text("6 messages in 1 claim return to lake at once")
    expect(page.locator("dialog")).to_contain_text("that work is done twice")
    visit.button("Release")
    visit.toast("Released 6 messages.")
    expect(page.get_by_role("button", name="Release spark of lake")).to_have_count(0)
    assert queue.info().counts.ready == 8
    queue.delete()


def test_a_stuck_claim_is_marked_also_if_the_statistics_come_later(visit: Visit) -> None:
    held: list[Route] = []
    asked = re.compile("/v1/(events|stats)")
    page = visit.page
    page.route(asked, lambda route: held.append(route))
    page.goto(f"{visit.url}/console#/claims")
    row = page.locator("tbody tr", has_text="nightly")
    expect(row).to_have_count(1)
    expect(row.locator("td.bad")).to_have_count(0)
    assert held
    page.unroute(asked)  # which lets go what is held
    expect(row.locator("td.bad")).to_have_text(re.compile("^1. min$"))


@pytest.mark.parametrize("width", [1280, 390, 320])
def test_the_history_says_the_date_once_and_covers_nothing(visit: Visit, width: int) -> None:
    visit.page.set_viewport_size({"width": width, "height": 800})
    page = visit.go("/history?queue=payments")
    expect(page.locator("tr.event").first.locator("time")).to_have_text(re.compile(r"^\d\d:\d\d:\d\d\.\d{3}$"))
    assert 1 <= page.locator("tr.date").count() <= 2  # an hour that may have a midnight in it
    boxes = [one.bounding_box() for one in page.locator(".filters input, .filters select, .filters button").all()]
    places = [(one["x"], one["y"], one["x"] + one["width"], one["y"] + one["height"]) for one in boxes if one]
    for number, (left, top, right, bottom) in enumerate(places):
        for x, y, end, foot in places[number + 1 :]:
            assert right <= x or end <= left or bottom <= y or foot <= top, "two of them overlap"
    if width == 1280:
        assert len({round(top) for _, top, _, _ in places}) == 1, "they stand on one line"


def test_a_message_shows_its_life_its_task_and_json_that_folds(visit: Visit, mq: miniq.Client) -> None:
    queue = mq.queue("tasks")
    queue.configure(history="events", retry={"delay": 0})
    celery = queue.send([[1, 2], {"z": 3}, {}], headers=CELERY)
    fail(queue, "no", dead=False)
    for message in queue.receive(consumer="ben"):
        message.ack()
    celery = queue.send([[1, 2], {"z": 3}, {}], headers=CELERY)
    fail(queue, "no", dead=False)
    queue.send(DRAMATIQ)
    queue.send({"to": "ann"}, headers={"task": "welcome"})
    page = visit.go("/q/tasks")
    expect(page.locator("td.cut")).to_have_text(
        ["shop.add(1, 2, **{'z': 3})", 'send_mail("a@b.c", n=1)', 'welcome(to="ann")']
    )
    visit.go(f"/q/tasks/m/{celery}")
    facts = page.locator(".facts").first
    for text in ("Celery task", "shop.add(1, 2, **{'z': 3})", "Retries", "ETA"):
        expect(facts).to_contain_text(text)
    body = page.locator("pre.body").last
    expect(body).to_have_text('[ [ 1, 2 ], { "z": 3 }, {} ]')
    expect(body.locator(".j-key")).to_have_text(['"z"'])
    inner = body.get_by_text("2", exact=True)
    expect(inner).to_be_visible()
    body.get_by_role("button", name="Fold line 2").press("Enter")
    expect(inner).to_be_hidden()
    expect(page.locator(".timeline li b")).to_have_text(["Sent", "Received", "Failed"])
    expect(page.locator(".life")).to_have_attribute("aria-label", re.compile("waiting"))
    queue.delete()


def test_the_focus_stays_where_it_was_moved_while_a_page_loads(visit: Visit, mq: miniq.Client) -> None:
    queue = mq.queue("slow")
    id = queue.send([[1, 2]])
    page = visit.go("/q/slow")
    held: list[Route] = []
    page.route("**/v1/history?*", lambda route: held.append(route))
    visit.go(f"/q/slow/m/{id}")
    fold = page.get_by_role("button", name="Fold line 2")
    fold.focus()
    expect(page.get_by_text("Loading…")).to_be_visible()
    for route in held:
        route.continue_()
    expect(page.get_by_text("No history recorded")).to_be_visible()
    expect(fold).to_be_focused()
    queue.delete()


@pytest.mark.parametrize("width", [390, 320])
def test_a_phone_shows_the_whole_menu_even_tiles_and_several_queues(visit: Visit, width: int) -> None:
    visit.page.set_viewport_size({"width": width, "height": 844})
    page = visit.go("/")
    expect(row(page, "fine").locator("[data-label=Ready]")).to_have_text("30")
    for link in page.locator("nav a").all():
        box = link.bounding_box()
        assert box is not None
        assert box["x"] >= 0, link.inner_text()
        assert box["x"] + box["width"] <= width, link.inner_text()
    expect(page.get_by_role("link", name="Dead letters", exact=True)).to_be_visible()
    heights = {name: one["height"] for name in WORDS if (one := row(page, name).bounding_box())}
    assert len(heights) == len(WORDS)
    assert max(heights.values()) <= 130, heights
    for path, count in (("/", 8), ("/q/payments", 6), ("/q/mail.dead", 4)):
        visit.go(path)
        expect(page.locator(".tiles > *")).to_have_count(count)
        tops = [box["y"] for one in page.locator(".tile").all() if (box := one.bounding_box())]
        assert len({tops.count(top) for top in tops}) == 1, "each row has as many"


@pytest.mark.parametrize(
    ("sent", "line", "eta"),
    [
        ("add.apply_async((1, 2), queue='sent')", "celery_tasks.add(1, 2)", None),
        (
            "flaky.apply_async((1,), {'fails': 2}, queue='sent', eta=datetime(2099, 5, 4), retries=2)",
            "celery_tasks.flaky(1, **{'fails': 2})",
            "2099",
        ),
    ],
)
def test_a_task_that_celery_sent_is_shown_as_peek_shows_it(
    visit: Visit, mq: miniq.Client, tmp_path: Path, sent: str, line: str, eta: str | None
) -> None:
    env = environment(visit.url.replace("http://", "miniq://"), tmp_path / "notes")
    call(env, f"from datetime import datetime\n{sent}")
    [message] = mq.queue("sent").peek()
    task = task_of(message.id, message.headers, message.data)
    assert task is not None
    assert (f"{task.name}({task.args})", (task.eta or "")[:4], task.retries) == (line, eta or "", 2 if eta else 0)
    page = visit.go("/q/sent")
    expect(page.locator("td.cut")).to_have_text(line)
    visit.go(f"/q/sent/m/{message.id}")
    facts = page.locator(".facts").first
    expect(facts).to_contain_text(f"Celery task{line}")
    if eta:
        expect(facts.locator("dt:text-is('ETA') + dd")).to_contain_text(eta)
        expect(facts.locator("dt:text-is('Retries') + dd")).to_have_text("2")
    else:
        expect(facts).not_to_contain_text(re.compile("ETA|Retries"))
    mq.queue("sent").delete()


def test_dates_that_are_none_are_shown_as_they_are(visit: Visit, mq: miniq.Client) -> None:
    queue = mq.queue("undated")
    id = queue.send([[], {}, {}], headers={"task": "t", "argsrepr": "()", "eta": "soon"})
    queue.send({"actor_name": "a", "args": None, "kwargs": 1, "options": {"eta": 1e300, "retries": 1e300}})
    queue.send({"actor_name": "b", "args": "text", "kwargs": {}, "options": {"eta": {}, "retries": "many"}})
    page = visit.go("/q/undated")
    expect(page.locator("td.cut")).to_have_text(["t()", "a()", "b()"])
    visit.go(f"/q/undated/m/{id}")
    expect(page.locator(".facts").first.locator("dt:text-is('ETA') + dd")).to_have_text("soon")
    shown = page.evaluate(
        """async () => {
          const dom = await import("/console/dom.js");
          return ["moment", "timeOfDay"].map((name) => dom[name]("null").textContent)
            .concat(dom.day("null"), dom.hourAndMinute(NaN), dom.age("null"), dom.until(undefined), dom.isoTime("no"));
        }"""
    )
    assert shown == ["null", "null", "null", "NaN", "\u2013", "\u2013", "no"]
    queue.delete()


PAGES = {
    "overview": ("/", "tbody tr"),
    "queue": ("/q/payments", "td.cut"),
    "dead-list": ("/dead", "tbody tr"),
    "dead-letters": ("/dead/mail.dead", "tbody tr"),
    "dead-queue": ("/q/mail.dead", "td.cut"),
    "dead-message": ("DEAD", ".facts"),
    "claims": ("/claims", "tbody tr"),
    "history": ("/history", "tr.event"),
    "message": ("MESSAGE", ".timeline li"),
    "empty": ("/q/default", ".snippet"),
    "topics": ("/topics", ".snippet"),
    "schedules": ("/schedules", ".snippet"),
    "keys": ("/keys", ".empty"),
}


EVERYTHING = {"resultTypes": ["violations"]}
CONTRAST = EVERYTHING | {"runOnly": ["color-contrast"]}
FEWER_ROWS = (
    "document.querySelectorAll('tbody').forEach((body) => [...body.children].slice(12).forEach((row) => row.remove()))"
)
"""Rows are alike, and axe looks at each for long."""


@pytest.mark.parametrize("width", [1280, 320])
def test_every_page_is_for_everybody_at_every_width_in_light_and_dark(
    browser: Browser, url: str, mq: miniq.Client, width: int
) -> None:
    """Axe finds nothing serious, nothing scrolls sideways, nothing is said on the browser's console."""
    size = "desk" if width == 1280 else "phone"
    visit = Visit(browser, url, size, color_scheme="light", bypass_csp=True, reduced_motion="reduce", locale="en-GB")
    page = visit.page
    page.set_viewport_size({"width": width, "height": 844})
    [record] = mq.history(queue="payments", event="failed", limit=1).records
    [dead, *_] = mq.queue("mail.dead").peek(limit=1)
    places = {"MESSAGE": f"/q/payments/m/{record.event.id}", "DEAD": f"/q/mail.dead/m/{dead.id}"}
    faults: dict[str, list[Any]] = {}
    for name, (path, selector) in PAGES.items():
        page.emulate_media(color_scheme="light")
        page.goto("about:blank")
        visit.go(places.get(path, path))
        page.locator(selector).first.wait_for()
        expect(page.locator("#live")).to_have_text("live")
        sideways = not page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        bad: list[Any] = ["it scrolls sideways"] if sideways else []
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
            if folder := os.environ.get("MINIQ_PICTURES"):
                page.screenshot(path=Path(folder) / f"{name}-{width}-{scheme}.png", full_page=True)
            page.evaluate(FEWER_ROWS)
            # Only colours are different in the dark.
            if scheme == "light":
                found = Axe().run(page, options=EVERYTHING).response
            else:
                found = page.evaluate("options => axe.run(document, options)", CONTRAST)
            serious = [one for one in found["violations"] if one["impact"] in ("serious", "critical")]
            bad += [(scheme, one["id"], [node["html"][:160] for node in one["nodes"][:3]]) for one in serious]
        if bad:
            faults[name] = bad
    assert faults == {}
    assert visit.bad == []
    visit.close()
