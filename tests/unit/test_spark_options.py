"""Options of `format("miniq")`: an error names the invalid option and a valid value, before any work starts."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from miniq.errors import InvalidRequest

pytest.importorskip("pyspark")

from miniq.spark.options import Use, check_use, read_options
from miniq.spark.pipelines.runs import check_options

URL = "http://127.0.0.1:5000"


def error_text(use: Use = "read", **given: str) -> str:
    """The error that these options raise."""
    with pytest.raises(InvalidRequest) as caught:
        check_use(read_options(given), given, use)
    return caught.value.text


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"queues": "x"}, "queues: no such option; did you mean 'queue'?"),
        ({"bodyShema": "a int"}, "bodyShema: no such option; did you mean 'bodySchema'?"),
        ({"xyz": "x"}, "xyz: no such option; use one of url, queue"),
        ({"queue": "a b"}, "queue: 'a b' is invalid; use 1 to 128 of"),
        ({"queue": ""}, "queue: '' is invalid; use 1 to 128 of"),
        ({"url": "tcp://127.0.0.1:5557", "queue": "q"}, "url: 'tcp://127.0.0.1:5557' is invalid; use http://HOST:PORT"),
        ({"url": "./folder", "queue": "q"}, "url: './folder' is invalid; use http://HOST:PORT"),
        ({"url": "http://", "queue": "q"}, "url: cannot connect to 'http://'"),
        ({"queue": "q", "view": "both"}, "view: 'both' is invalid; use messages or history"),
        ({"queue": "q", "status": "gone"}, "status: 'gone' is invalid; use ready or delayed or leased"),
        ({"queue": "q", "partitions": "0"}, "partitions: '0' is invalid; use a whole number from 1 to 10,000"),
        ({"queue": "q", "partitions": "many"}, "partitions: 'many' is invalid; use a whole number"),
        ({"queue": "q", "failOnDataLoss": "perhaps"}, "failOnDataLoss: 'perhaps' is invalid; use true or false"),
        ({"queue": "q", "retry": "-1"}, "retry: '-1' is invalid; use 0 to 86400 seconds"),
        ({"queue": "q", "retry": "nan"}, "retry: 'nan' is invalid; use 0 to 86400 seconds"),
        ({"queue": "q", "startingOffset": "5"}, "startingOffset: is for view=history, but the view is messages"),
        ({"view": "history", "status": "ready"}, "status: is for view=messages, but the view is history"),
        (
            {"view": "history", "startingOffset": "first"},
            "startingOffset: 'first' is invalid; use a history offset, 'earliest'",
        ),
        (
            {"view": "history", "startingOffset": "-1"},
            "startingOffset: '-1' is invalid; use a history offset, 'earliest'",
        ),
        (
            {"view": "history", "startingOffset": "latest"},
            "startingOffset: 'latest' is invalid; a batch read would be empty",
        ),
        ({"view": "history", "startingOffset": "9", "endingOffset": "3"}, "endingOffset: '3' is invalid; it is before"),
        ({"view": "history", "startingTime": "now"}, "startingTime: 'now' is invalid; use a time such as"),
        ({"view": "history", "startingTime": "2026-02-01", "endingTime": "2026-01-01"}, "endingTime: "),
        ({}, "queue: is missing; set it with"),
        ({"queue": "q", "group": "g"}, "group: has no effect on read; it is for readStream"),
        ({"queue": "q", "job": "j"}, "job: has no effect on read; it is for write"),
        ({"topic": "t"}, "topic: has no effect on read; it is for write and writeStream"),
    ],
)
def test_invalid_options_of_a_read_are_rejected(given: dict[str, str], text: str) -> None:
    assert error_text(**given).startswith(text)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"queue": "q"}, "group: is missing; set it with"),
        ({"queue": "q", "group": "a/b"}, "group: 'a/b' is invalid; use 1 to 128 of"),
        ({"queue": "q", "group": "g", "status": "ready"}, "status: has no effect on readStream"),
        (
            {"queue": "q", "group": "g", "maxMessagesPerBatch": "2000000"},
            "maxMessagesPerBatch: '2000000' is invalid; use a whole",
        ),
        ({"queue": "q", "group": "g", "pollTimeout": "61"}, "pollTimeout: '61' is invalid; use 0 to 60 seconds"),
        ({"view": "history", "group": "g"}, "group: is for view=messages"),
    ],
)
def test_invalid_options_of_a_stream_read_are_rejected(given: dict[str, str], text: str) -> None:
    assert error_text("readStream", **given).startswith(text)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({}, "queue: is missing; set it with .option('queue', NAME), or a topic with .option('topic', NAME)"),
        ({"queue": "q", "topic": "t"}, "topic: given together with queue; write to the queue 'q' or the topic 't'"),
        ({"topic": "a b"}, "topic: 'a b' is invalid; use 1 to 128 of"),
        ({"queue": "q", "view": "history"}, "view: has no effect on write"),
        ({"queue": "q", "partitions": "2"}, "partitions: has no effect on write; it is for read and readStream"),
        ({"queue": "q", "job": "a b"}, "job: 'a b' is invalid; use 1 to 128 of"),
    ],
)
def test_invalid_options_of_a_write_are_rejected(given: dict[str, str], text: str) -> None:
    assert error_text("write", **given).startswith(text)


def test_option_names_are_case_insensitive_and_values_are_parsed() -> None:
    options = read_options(
        {"URL": URL, "Queue": "q", "MAXMESSAGESPERBATCH": "7", "failondataloss": "FALSE", "path": "x"}
    )
    assert (options.queue, options.maxMessagesPerBatch, options.failOnDataLoss) == ("q", 7, False)
    options = read_options({"view": "history", "startingTime": "2026-11-15T08:00:00+01:00", "startingOffset": "5"})
    assert options.startingTime == datetime(2026, 11, 15, 7, tzinfo=UTC)
    assert options.startingOffset == 5


def test_api_key_and_url_default_to_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINIQ_API_KEY", "secret")
    monkeypatch.setenv("MINIQ_URL", "http://broker:5001")
    options = read_options({"queue": "q"})
    assert (options.api_key, options.url) == ("secret", "http://broker:5001")
    assert read_options({"queue": "q", "api_key": "mine", "url": URL}).api_key == "mine"


def test_a_claim_is_split_by_its_messages_or_by_their_bytes() -> None:
    from miniq.spark.stream import parts_of

    mib = 1024 * 1024
    assert [parts_of(*claim) for claim in [(0, 0), (1, 64 * mib), (25_000, mib), (25_001, mib)]] == [1, 1, 1, 2]
    assert parts_of(500, 64 * mib) == 8, "few large messages"
    assert parts_of(1_000_000, 64 * mib) == 40, "many small ones"


def test_an_option_that_a_pipeline_lacks_is_refused_with_those_that_it_has() -> None:
    for pipeline, option, only in (
        ("ingest", "x", "use one of maxFilesPerTrigger"),
        ("ingest", "maxFilesPerTriger", "did you mean 'maxFilesPerTrigger'?"),
        ("replay", "x", "replay has no options"),
    ):
        with pytest.raises(InvalidRequest) as caught:
            check_options(pipeline, {option: "1"})
        assert caught.value.text == f"{option}: no such option; {only}"
