"""The web console in a real browser: every page and every action, on a desk and on a phone."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Route, expect

import miniq
from miniq.server.http.console import files
from tests.acceptance.browser import Visit, both_sizes
from tests.serving import Served, serving

HOSTILE = (
    '<script>window.hacked=1</script><img src=x onerror="window.hacked=1">"\'&amp; 😀 \u202eright to left\u202c שלום'
)


@pytest.fixture
def visit(size: str, browser: Browser, broker: miniq.Client, server: Served) -> Iterator[Visit]:
    """A tab on that broker."""
    made = Visit(browser, server.url, size)
    yield made
    made.close()
    assert made.bad == []


def test_the_overview_shows_queues_and_what_happens_to_them(visit: Visit, broker: miniq.Client) -> None:
    broker.queue("emails").configure(max_receives=1)
    broker.queue("emails").send_many(range(12))
    broker.queue("orders").send(1, delay=600)
    broker.queue("emails").receive(max=2, visibility_timeout=600)
    page = visit.go("/")
    row = page.locator("tbody tr", has=page.get_by_role("link", name="emails", exact=True))
    expect(row.locator("td").nth(2)).to_have_text("10")
    expect(row.locator("td").nth(3)).to_have_text("2")
    broker.queue("emails").send_many(range(5))
    expect(row.locator("td").nth(2)).to_have_text("15")
    expect(page.locator("#live")).to_have_text("live")
    page.keyboard.press("/")
    page.keyboard.type("ord")
    expect(page.locator("tbody tr")).to_have_count(1)
    page.keyboard.press("Control+A")
    page.keyboard.type("nothing")
    expect(page.get_by_text("No matching queues")).to_be_visible()
    broker.queue("gone").send(1)
    page.locator("input.search").fill("gone")
    expect(page.locator("tbody tr")).to_have_count(1)
    broker.queue("gone").delete()
    expect(page.locator("tbody tr")).to_have_count(0)


def test_columns_sort_and_the_keyboard_walks(browser: Browser, broker: miniq.Client, server: Served) -> None:
    visit = Visit(browser, server.url, "desk")
    for name, many in (("a", 1), ("b", 30), ("c", 2)):
        broker.queue(name).send_many(range(many))
    page = visit.go("/")
    page.get_by_role("button", name="Ready", exact=True).click()
    expect(page.locator("tbody tr").first).to_contain_text("b")
    expect(page.get_by_role("columnheader", name="Ready")).to_have_attribute("aria-sort", "descending")
    page.locator("h1").click()
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("k")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("b")
    page.keyboard.press("s")
    assert page.locator("dialog textarea").first.input_value().endswith("}")  # the letter itself is not typed
    page.keyboard.press("Escape")
    expect(page.locator("dialog")).to_have_count(0)
    for key, title in (
        ("d", "Dead letters"),
        ("s", "Schedules"),
        ("t", "Topics"),
        ("c", "Claims"),
        ("h", "History"),
        ("k", "Keys"),
        ("q", "Queues"),
    ):
        page.keyboard.press("g")
        page.keyboard.press(key)
        expect(page.get_by_role("heading", level=1)).to_have_text(title)
    page.keyboard.press("?")
    expect(page.get_by_role("heading", name="Keyboard shortcuts")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("dialog")).to_have_count(0)
    page.get_by_role("button", name="Change theme").click()
    expect(page.locator("html")).to_have_attribute("data-theme", "light")
    assert visit.bad == []
    visit.close()


def test_many_queues_are_drawn_two_hundred_at_a_time(browser: Browser) -> None:
    with serving("memory:") as served:
        with miniq.connect(served.url) as mq:
            for number in range(450):
                mq.queue(f"q.{number:03d}").send(number)
        visit = Visit(browser, served.url, "desk")
        page = visit.go("/")
        expect(page.locator("tbody tr")).to_have_count(200)
        expect(page.locator(".tile").first).to_contain_text("451")
        page.locator("input.search").fill("q.24")
        expect(page.locator("tbody tr")).to_have_count(10)
        page.locator("input.search").fill("")
        expect(page.locator("tbody tr")).to_have_count(200)
        page.locator("th button", has_text="Ready").click()  # which puts another queue in place of the empty one
        assert page.locator("tbody tr").count() == 200
        page.mouse.wheel(0, 3000)
        page.wait_for_function("scrollY > 2000")
        box = page.locator("thead th").first.bounding_box()
        assert box is not None
        assert 50 <= box["y"] <= 54, "the heads stay under the bar"
        visit.button("Show 200 more of 251 queues")
        expect(page.locator("tbody tr")).to_have_count(400)
        visit.button("Show 51 more queues")
        expect(page.locator("tbody tr")).to_have_count(451)
        assert visit.bad == []
        visit.close()


def test_an_empty_broker_and_an_empty_queue_say_what_to_do(visit: Visit, broker: miniq.Client) -> None:
    page = visit.go("/")
    expect(page.get_by_text("Send your first message")).to_be_visible()
    expect(page.locator(".curl")).to_contain_text(f"curl {visit.url}/v1/queues/emails/messages")
    visit.button("New queue")
    page.get_by_label("Name", exact=True).fill("jobs")
    page.get_by_label("Visibility timeout").fill("90")
    visit.button("Create")
    expect(page.get_by_role("heading", level=1)).to_have_text("jobs")
    expect(page.get_by_text("This queue is empty")).to_be_visible()
    assert broker.queue("jobs").info().settings.visibility_timeout == 90


@both_sizes
def test_messages_are_sent_searched_looked_at_edited_and_deleted(visit: Visit, broker: miniq.Client) -> None:
    queue = broker.queue("emails")
    queue.configure(history="events")
    queue.send_many([{"n": n} for n in range(120)])
    queue.send({"text": "a needle, Größe XL"}, key="order-77")
    page = visit.go("/q/emails")
    expect(page.locator("tbody tr")).to_have_count(50)
    visit.button("Show more")
    expect(page.locator("tbody tr")).to_have_count(100)
    for text in ("needle", "ORDER-77", "größe"):
        page.locator("input.search").fill(text)
        visit.button("Search")
        expect(page.get_by_text("Found 1 message in 121 scanned")).to_be_visible()
    page.locator("input.search").fill("")
    visit.button("Send")
    page.get_by_label("Body").first.fill('{"n": 12345678901234567890')
    visit.button("Send")
    expect(page.locator("dialog .error")).to_have_text("The body is not valid JSON.")
    page.get_by_label("Body").first.fill('{"n": 12345678901234567890}')
    page.get_by_label("Priority (0 to 9)").fill("9")
    page.get_by_text("More options", exact=True).click()
    page.get_by_label("Headers").fill("tenant: acme\nempty:")
    visit.button("Send")
    visit.toast("Sent ")
    (found,) = [message for message in queue.peek() if message.priority == 9]
    assert (found.data, found.headers) == (b'{"n":12345678901234567890}', {"tenant": "acme", "empty": ""})
    page.locator("input.search").fill(found.id)
    visit.button("Search")
    page.locator("tbody a").first.click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Message")
    expect(page.locator("pre.body")).to_contain_text('"n": 12345678901234567890')
    expect(page.locator(".timeline li")).to_have_count(1)
    visit.button("Edit")
    page.get_by_label("Priority (0 to 9)").fill("3")
    visit.button("Save")
    visit.toast("Saved.")
    expect(page.locator(".timeline")).to_contain_text("Edited")
    assert (queue.get(found.id).priority, queue.get(found.id).data) == (3, found.data)
    visit.button("Delete")
    visit.button("Delete")
    visit.toast("Deleted.")
    with pytest.raises(miniq.MessageNotFound):
        queue.get(found.id)


def test_states_can_be_browsed_and_a_held_message_is_released(visit: Visit, broker: miniq.Client) -> None:
    queue = broker.queue("work")
    queue.send("held")
    (held,) = queue.receive(visibility_timeout=600, consumer="worker-7")
    queue.send("later", delay=600)
    queue.send("now")
    page = visit.go("/q/work")
    for state, body in (("Delayed", '"later"'), ("Ready", '"now"'), ("In-flight", '"held"')):
        visit.button(state)
        expect(page.locator(".inline tbody tr")).to_have_count(1)
        expect(page.locator(".inline tbody tr")).to_contain_text(body.strip('"'))
    expect(page.locator("tbody .badge")).to_have_text("in-flight")
    page.locator("tbody a").click()
    expect(page.locator(".facts")).to_contain_text("worker-7")
    visit.button("Release")
    expect(page.locator("dialog")).to_contain_text("worker-7 holds the lease")
    visit.button("Release")
    visit.toast("Released.")
    expect(page.locator(".head .badge")).to_have_text("ready")
    with pytest.raises(miniq.StaleReceipt):
        held.ack()


@both_sizes
def test_settings_are_changed_and_a_wrong_one_is_told(visit: Visit, broker: miniq.Client) -> None:
    broker.queue("work").configure(retention=5000)
    page = visit.go("/q/work")
    visit.button("Settings")
    page.get_by_label("Max receives").fill("3")
    page.get_by_label("History").select_option("full")
    visit.button("Save settings")
    visit.toast("Saved.")
    settings = broker.queue("work").info().settings
    assert (settings.max_receives, settings.history, settings.retention) == (3, "full", 5000)
    page.get_by_label("Visibility timeout").fill("99999999")
    visit.button("Save settings")
    visit.toast("visibility_timeout: 99999999 s is out of range")
    visit.bad.clear()  # the browser notes the answer 400


def test_results_are_set_up_and_shown_after_a_message_has_left(visit: Visit, broker: miniq.Client) -> None:
    queue = broker.queue("sums")
    queue.configure(history="events")
    page = visit.go("/q/sums")
    visit.button("Settings")
    page.get_by_label("Keep results (0: not at all)").fill("60")
    visit.button("Save settings")
    visit.toast("Saved.")
    assert queue.info().settings.results == 60
    done, dead = queue.send_many([1, 2])
    first, second = queue.receive(max=2)
    first.ack(result={"sum": "<b>3</b>"})
    second.fail("no numbers", dead=True)
    visit.go(f"/q/sums/m/{done}")
    expect(page.get_by_role("heading", name="Result (JSON, 18 B)")).to_be_visible()
    expect(page.locator("pre.body")).to_have_text('{\n  "sum": "<b>3</b>"\n}')
    expect(page.locator(".timeline li")).to_have_count(3)
    visit.go(f"/q/sums/m/{dead}")
    expect(page.locator("pre.body")).to_have_text("no numbers")
    visit.bad.clear()  # the browser notes the answers 404


@both_sizes
def test_purge_and_delete_ask_for_the_name_first(visit: Visit, broker: miniq.Client) -> None:
    broker.queue("work").send_many(range(7))
    page = visit.go("/q/work")
    visit.button("Purge")
    expect(page.locator("dialog")).to_contain_text("7 messages will be removed, including those in flight")
    page.get_by_label("Type the queue name to confirm").fill("wrong")
    visit.button("Purge")
    expect(page.locator("dialog .error")).to_have_text("Name doesn't match")
    page.keyboard.press("Escape")
    assert broker.queue("work").info().counts.total == 7
    visit.button("Purge")
    page.get_by_label("Type the queue name to confirm").fill("work")
    visit.button("Purge")
    visit.toast("Purged 7 messages.")
    assert broker.queue("work").info().counts.total == 0
    visit.button("Delete")
    page.get_by_label("Type the queue name to confirm").fill("work")
    visit.button("Delete")
    visit.toast("Deleted work.")
    expect(page.get_by_role("heading", level=1)).to_have_text("Queues")
    assert [info.name for info in broker.queues()] == ["default"]


@both_sizes
def test_dead_letters_are_grouped_and_those_selected_are_redriven(visit: Visit, broker: miniq.Client) -> None:
    for name in ("mail", "fax"):
        queue = broker.queue(name)
        queue.configure(max_receives=1, dead_letter_queue="lost")
        queue.send_many([{"from": name, "n": n} for n in range(3)])
        for message in queue.receive(max=3):
            message.release()
    page = visit.go("/dead")
    expect(page.locator("tbody tr")).to_contain_text(["lost"])
    expect(page.locator("tbody td").nth(2)).to_have_text("6")
    page.get_by_role("link", name="lost").click()
    expect(page.locator("section.card")).to_have_count(2)
    page.get_by_label("Select all: max_receives, from fax").check()
    visit.button("Redrive 3 messages")
    visit.button("Redrive")
    visit.toast("Moved 3 messages.")
    expect(page.locator("section.card")).to_have_count(1)
    assert broker.queue("fax").info().counts.ready == 3
    page.locator("tbody input").first.check()
    visit.button("Discard 1 message")
    visit.button("Discard")
    visit.toast("Discarded 1 message.")
    assert broker.queue("lost").info().counts.total == 2
    page.get_by_role("link", name="Queue", exact=True).click()
    visit.button("Redrive")
    page.get_by_label("Destination queue").fill("mail")
    visit.button("Redrive")
    visit.toast("Moved 2 messages.")
    assert broker.queue("mail").info().counts.ready == 2


@both_sizes
def test_claims_are_listed_with_their_age(visit: Visit, broker: miniq.Client) -> None:
    page = visit.go("/claims")
    expect(page.get_by_text("No claims")).to_be_visible()
    queue = broker.queue("etl")
    queue.send_many(range(40))
    claims = queue.claims("nightly")
    claims.next(0, max_messages=25)
    visit.button("Refresh")
    row = page.locator("tbody tr")
    expect(row).to_have_count(1)
    for text in ("etl", "nightly", "held", "25"):
        expect(row).to_contain_text(text)
    claims.fetch(1)
    claims.ack(1)
    visit.button("Refresh")
    expect(row).to_contain_text("acked")
    page.goto(f"{visit.url}/console#/q/etl")
    expect(page.locator(".inline tbody tr")).to_have_count(15)
    claims.next(1, max_messages=10)
    visit.button("In-flight")
    expect(page.locator(".inline tbody tr")).to_have_count(10)
    page.locator("tbody a").first.click()
    expect(page.locator(".facts")).to_contain_text("nightly, in a claim")
    assert page.locator(".actions button").count() == 0, "nothing changes what is in a claim"


def test_the_last_report_can_be_opened(browser: Browser, size: str, tmp_path: Path) -> None:
    report, config = tmp_path / "report.html", tmp_path / "miniq.toml"
    report.write_text("<h1>Report of the night</h1><script>document.body.textContent = 'hacked'</script>")
    config.write_text(f'report = "{report}"\n')
    with serving("memory:", 0, "--config", str(config)) as served:
        visit = Visit(browser, served.url, size)
        page = visit.go("/claims")
        with visit.context.expect_page() as opened:
            page.get_by_role("link", name="Last report").click()
        expect(opened.value.get_by_role("heading")).to_have_text("Report of the night")
        visit.close()


@both_sizes
def test_the_history_is_searched_newest_first(visit: Visit, broker: miniq.Client) -> None:
    queue = broker.queue(f"told.{visit.size}")
    queue.configure(history="events")
    ids = queue.send_many(range(150))
    for message in queue.receive(max=2, consumer="ann"):
        message.ack()
    page = visit.go(f"/history?queue={queue.name}")
    expect(page.locator("tr.event")).to_have_count(100)
    expect(page.locator("tr.event").first).to_contain_text("acked")
    visit.button("Show older")
    expect(page.locator("tr.event")).to_have_count(154)
    page.get_by_label("Event").select_option("received")
    page.get_by_label("Consumer").fill("ann")
    visit.button("Search")
    expect(page.locator("tr.event")).to_have_count(2)
    page.get_by_label("Event").select_option("")
    page.get_by_label("Consumer").fill("")
    page.get_by_label("Message ID").fill(ids[0])
    visit.button("Search")
    expect(page.locator("tr.event")).to_have_count(3)
    page.get_by_label("Message ID").fill("")
    page.get_by_label("Since").fill("2099-01-01T00:00:00")
    visit.button("Search")
    expect(page.get_by_text("No events found")).to_be_visible()


def test_the_secret_of_the_first_key_is_not_covered_by_a_question_for_a_key(browser: Browser) -> None:
    def slowly(route: Route) -> None:
        reply = route.fetch()
        time.sleep(3)  # meanwhile the broker refuses what the tab asks without the key
        route.fulfill(response=reply)

    with serving("memory:") as served:
        visit = Visit(browser, served.url, "desk")
        page = visit.go("/keys")
        expect(page.locator("#live")).to_have_text("live")
        page.route("**/v1/keys", lambda route: slowly(route) if route.request.method == "POST" else route.continue_())
        visit.button("New key")
        page.get_by_label("Name", exact=True).fill("boss")
        visit.button("Create")
        expect(page.get_by_label("Secret")).to_be_visible()
        assert page.locator("dialog[open]").count() == 1
        expect(page.locator("#live")).to_have_text("live")
        visit.button("Done")
        expect(page.locator("#who")).to_contain_text("key boss")
        assert visit.bad == []


def test_keys_are_made_used_and_revoked_and_a_reader_sees_no_buttons(
    browser: Browser, size: str, tmp_path: Path
) -> None:
    with serving("memory:") as served:
        visit = Visit(browser, served.url, size)
        page = visit.go("/keys")
        expect(page.get_by_text("No keys")).to_be_visible()
        visit.button("New key")
        page.get_by_label("Name", exact=True).fill("boss")
        visit.button("Create")
        secret = page.get_by_label("Secret").input_value()
        assert secret.startswith("mq_")
        expect(page.get_by_text("from now on, a server on this store refuses calls without a key")).to_be_visible()
        visit.button("Done")
        expect(page.locator("#who")).to_contain_text("key boss")
        visit.button("New key")
        page.get_by_label("Name", exact=True).fill("reader")
        page.get_by_label("Permissions, one per line").fill("read:emails\nread:o*")
        visit.button("Create")
        reading = page.get_by_label("Secret").input_value()
        visit.button("Done")
        with miniq.connect(served.url, api_key=secret) as mq:
            mq.queue("emails").send("hello")
            mq.queue("secret").send("not yours")
        expect(page.locator("tbody tr")).to_have_count(2)
        assert page.evaluate("Object.keys(localStorage)") == []
        visit.context.close()

        other = Visit(browser, served.url, size)
        page = other.go("/")
        expect(page.get_by_role("heading", name="API key required")).to_be_visible()
        page.get_by_label("API key", exact=True).fill("mq_000000000000_wrong")
        other.button("Sign in")
        expect(page.locator("dialog .error").first).to_contain_text("is unknown or was revoked")
        page.get_by_label("API key", exact=True).fill(reading)
        other.button("Sign in")
        expect(page.locator("tbody tr")).to_have_count(1)
        expect(page.locator("#who")).to_contain_text("read-only")
        page.get_by_role("table").get_by_role("link", name="emails").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("emails")
        expect(page.locator("tbody tr")).to_have_count(1)
        assert page.locator(".actions button").count() == 0
        page.locator("tbody a").click()
        expect(page.locator("pre.body")).to_have_text('"hello"')
        assert page.locator(".actions button").count() == 0
        page.reload()
        expect(page.locator("pre.body")).to_have_text('"hello"')
        page.get_by_role("link", name="History").click()
        expect(page.get_by_text("No events found")).to_be_visible()
        page.get_by_role("link", name="Keys").click()
        expect(page.get_by_text("Managing keys requires a key with the admin permission")).to_be_visible()
        other.bad.clear()  # refusals that were meant

        boss = Visit(browser, served.url, size)
        page = boss.go("/keys")
        page.get_by_label("API key", exact=True).fill(secret)
        boss.button("Sign in")
        page.locator("tbody tr", has_text="reader").get_by_role("button", name="Revoke").click()
        boss.button("Revoke")
        boss.toast("Revoked reader.")
        expect(page.locator("tbody tr")).to_have_count(1)
        page = other.page
        expect(page.get_by_role("heading", name="API key required")).to_be_visible()
        expect(page.locator("#live")).to_have_text("signed out")
        expect(page.locator("#who")).to_have_text("")
        with miniq.connect(served.url, api_key=secret) as mq:
            page.get_by_label("API key", exact=True).fill(mq.create_key("sender", ["send:o", "manage:o*"]).secret)
        other.button("Sign in")
        expect(page.locator("#who span")).to_have_text("key sender · send, manage, not read")
        page.locator("#who button").first.click()
        expect(page.locator("dialog dd")).to_have_text(
            ["send messages, on o", "create, change, purge, redrive and delete, on o*"]
        )
        page.keyboard.press("Escape")
        expect(page.locator("#live")).to_have_text("live")
        boss.close()
        other.close()


def test_a_server_that_goes_away_is_told_and_comes_back(browser: Browser, tmp_path: Path) -> None:
    store = f"rocksdb:{tmp_path / 'data'}"
    with serving(store) as served:
        with miniq.connect(served.url) as mq:
            mq.queue("emails").send(1)
        visit = Visit(browser, served.url, "phone")
        page = visit.go("/")
        expect(page.locator("#live")).to_have_text("live")
        served.stop(signal.SIGKILL)
        expect(page.get_by_role("alert")).to_contain_text("Can't reach the broker")
        expect(page.locator("#live")).to_have_text("unreachable")
        with serving(store, served.port) as again:
            visit.toast("Reconnected.")
            expect(page.get_by_role("alert")).to_be_hidden()
            with miniq.connect(again.url) as mq:
                mq.queue("back").send(1)
            expect(page.get_by_role("table").get_by_role("link", name="back")).to_be_visible()
        visit.close()


def test_polling_takes_over_where_streams_do_not_come_through(
    browser: Browser, broker: miniq.Client, server: Served
) -> None:
    visit = Visit(browser, server.url, "desk")
    # A proxy that keeps the stream back until it ends, which it never does.
    visit.page.add_init_script(
        "const real = fetch; window.fetch = (path, options) => String(path).startsWith('/v1/events')"
        " ? new Promise((_, no) => options.signal.addEventListener('abort',"
        " () => no(new DOMException('', 'AbortError'))))"
        " : real(path, options);"
    )
    page = visit.go("/")
    expect(page.locator("#live")).to_have_text("polling", timeout=20_000)
    broker.queue("late").send(1)
    expect(page.get_by_role("table").get_by_role("link", name="late")).to_be_visible()
    visit.close()


def test_a_hostile_message_is_text_everywhere(visit: Visit, broker: miniq.Client) -> None:
    queue = broker.queue("evil")
    queue.configure(history="full", max_receives=1)
    html = {"text": HOSTILE, HOSTILE: [HOSTILE]}
    id = queue.send(html, key=HOSTILE[:60], headers={"<b>x</b>": HOSTILE})
    large = queue.send("<script>window.hacked=1</script>" + "x" * (1024 * 1024 - 40))
    plain = queue.send(HOSTILE, content_type="text/html; charset=utf-8")
    binary = queue.send(bytes(range(256)) + b"<script>window.hacked=1</script>", content_type="image/svg+xml")
    page = visit.go("/q/evil")
    expect(page.locator("tbody tr")).to_have_count(4)
    listed = page.get_by_role("table", name="Messages in evil")
    expect(listed).to_contain_text("<script>window.hacked=1</script>")
    page.goto(f"{visit.url}/console#/q/evil/m/{id}")
    expect(page.locator("pre.body")).to_have_text(re.compile(re.escape(json.dumps(HOSTILE, ensure_ascii=False))))
    expect(page.locator(".facts").nth(1)).to_contain_text("<b>x</b>")
    page.goto(f"{visit.url}/console#/q/evil/m/{large}")
    expect(page.get_by_text("Showing the first 64.0 KiB of 1024.0 KiB.")).to_be_visible()
    visit.button("Show all")
    assert page.locator("pre.body").inner_text().endswith('xxx"')
    page.goto(f"{visit.url}/console#/q/evil/m/{plain}")
    expect(page.locator("pre.body")).to_have_text(HOSTILE)
    page.goto(f"{visit.url}/console#/q/evil/m/{binary}")
    expect(page.locator("pre.body")).to_contain_text("00 01 02 03")
    with page.expect_download() as saved:
        visit.button("Download")
    assert Path(saved.value.path()).read_bytes() == queue.get(binary).data
    for message in queue.receive(max=4, consumer=HOSTILE[:60]):
        message.fail(HOSTILE)
    page.goto(f"{visit.url}/console#/q/evil.dead/m/{id}")
    expect(page.locator("pre.body").first).to_have_text(HOSTILE)
    for path, title in (("/dead/evil.dead", "evil.dead"), ("/history", "History"), ("/", "Queues")):
        page.goto(f"{visit.url}/console#{path}")
        expect(page.get_by_role("heading", level=1)).to_have_text(title)
        expect(page.locator("tbody tr").first).to_be_visible()
    assert page.evaluate("window.hacked") is None
    assert page.locator("main script, main img, main iframe").count() == 0


@pytest.mark.parametrize(("size", "scheme"), [("desk", "dark"), ("phone", "light")])
def test_no_dialog_has_a_serious_fault_for_people_with_disabilities(
    browser: Browser, broker: miniq.Client, server: Served, size: str, scheme: Any
) -> None:
    """The pages themselves are in test_console_trouble.py."""
    broker.queue("emails").send_many([{"n": n} for n in range(5)])
    visit = Visit(browser, server.url, size, color_scheme=scheme, bypass_csp=True, reduced_motion="reduce")
    page = visit.go("/q/emails")
    expect(page.locator("td.cut")).to_have_count(5)
    visit.button("Settings")
    check(visit, "settings")
    visit.button("Send")
    check(visit, "send")
    page.keyboard.press("Escape")
    visit.button("Purge")
    check(visit, "purge")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "it scrolls sideways"
    visit.close()


def check(visit: Visit, where: str) -> None:
    found = Axe().run(visit.page, options={"resultTypes": ["violations"]}).response["violations"]
    bad = [
        (one["id"], one["help"], [node["html"][:200] for node in one["nodes"][:3]])
        for one in found
        if one["impact"] in ("serious", "critical")
    ]
    assert bad == [], where


def test_the_page_is_small_and_asks_nobody_else(browser: Browser, broker: miniq.Client, server: Served) -> None:
    visit = Visit(browser, server.url, "desk")
    sizes: dict[str, int] = {}
    asked: set[str] = set()
    visit.page.on("request", lambda request: asked.add(request.url))
    visit.page.on(
        "response",
        lambda reply: sizes.__setitem__(reply.url, len(reply.body())) if "/console" in reply.url else None,
    )
    page = visit.go("/")
    expect(page.locator("#live")).to_have_text("live")
    assert all(url.startswith(server.url) for url in asked)
    assert 10_000 < sum(sizes.values()) < 100_000, sizes
    assert sum(len(file.gzipped) for file in files().values()) < 120_000, "all pages together, as they are sent"
    assert page.evaluate("getComputedStyle(document.body).fontVariantNumeric") == "tabular-nums"
    visit.close()
