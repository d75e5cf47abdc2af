"""What a program sends by Amazon SQS, in the console in a real browser."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

import miniq
from tests.acceptance.browser import Visit
from tests.serving import Served
from tests.sqs import client


@pytest.fixture
def visit(browser: Browser, broker: miniq.Client, server: Served) -> Iterator[Visit]:
    """A tab on that broker, which is empty."""
    made = Visit(browser, server.url, "desk")
    yield made
    made.close()
    assert made.bad == []


def test_a_message_of_boto3_is_shown_with_its_attributes(visit: Visit) -> None:
    sqs = client(visit.url)
    url = sqs.create_queue(QueueName="orders")["QueueUrl"]
    attributes = {
        "color": {"DataType": "String", "StringValue": "red"},
        "total": {"DataType": "Number", "StringValue": "12.50"},
        "raw": {"DataType": "Binary", "BinaryValue": b"\0\1"},
    }
    sent = sqs.send_message(QueueUrl=url, MessageBody='{"order": 7}', MessageAttributes=attributes)
    page = visit.go("/q/orders")
    row = page.locator("tbody tr")
    expect(row).to_contain_text('{"order": 7}')
    row.locator("a").first.click()
    facts = page.locator("section.card").first
    expect(facts).to_contain_text(sent["MessageId"])
    expect(facts).to_contain_text("text/plain")
    expect(page.locator("pre.body")).to_have_text('{"order": 7}')
    headers = page.locator("section.card", has=page.get_by_role("heading", name="Headers"))
    expect(headers.locator("dt")).to_have_text(["color", "total", "AWS.DataType.total", "raw", "AWS.DataType.raw"])
    expect(headers.locator("dd")).to_have_text(["red", "12.50", "Number", "AAE=", "Binary"])
    (message,) = sqs.receive_message(QueueUrl=url)["Messages"]
    page.reload()
    expect(page.get_by_role("button", name="Release", exact=True)).to_be_visible()  # it is leased
    sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    visit.go("/q/orders")
    expect(page.locator("tbody tr")).to_have_count(0)
