"""What a URL means to `connect`, and what is said of one that means nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import miniq


@pytest.mark.parametrize(
    ("url", "right"),
    [
        ("127.0.0.1:5000", "http://127.0.0.1:5000"),
        ("localhost:5000", "http://localhost:5000"),
        ("localhost:5000/", "http://localhost:5000"),
        ("localhost:5000/console", "http://localhost:5000"),
        ("localhost:5557", "tcp://localhost:5557"),
        ("localhost", "http://localhost:5000"),
        ("localhost/", "http://localhost:5000"),
        ("127.0.0.1", "http://127.0.0.1:5000"),
        ("127.0.0.1/v1/queues", "http://127.0.0.1:5000"),
        ("broker.example.com:5000", "http://broker.example.com:5000"),
        ("a:5000", "http://a:5000"),
        ("my_host:5000", "http://my_host:5000"),
        ("[::1]:5000", "http://[::1]:5000"),
        ("[::1]", "http://[::1]:5000"),
        ("//127.0.0.1:5000", "http://127.0.0.1:5000"),
        ("://127.0.0.1:5000", "http://127.0.0.1:5000"),
        (":5000", "http://127.0.0.1:5000"),
        ("5000", "http://127.0.0.1:5000"),
        ("htp://127.0.0.1:5000", "http://127.0.0.1:5000"),
        ("ttp://127.0.0.1:5000", "http://127.0.0.1:5000"),
        ("http:/127.0.0.1:5000", "http://127.0.0.1:5000"),
        ("http:127.0.0.1:5000", "http://127.0.0.1:5000"),
        ("http:5000", "http://127.0.0.1:5000"),
        ("http//127.0.0.1:5000", "http://127.0.0.1:5000"),
        ("https//broker.example.com", "https://broker.example.com"),
        ("http;//127.0.0.1:5000", "http://127.0.0.1:5000"),
        ("tcp:5557", "tcp://127.0.0.1:5557"),
        ("tcp//127.0.0.1:5557", "tcp://127.0.0.1:5557"),
        ("tpc://127.0.0.1:5557", "tcp://127.0.0.1:5557"),
        ("zmq://127.0.0.1:5557", "tcp://127.0.0.1:5557"),
        ("postgres//miniq@db/miniq", "postgresql://miniq@db/miniq"),
        ("postgresql:/miniq@db/miniq", "postgresql://miniq@db/miniq"),
        ("postgre://miniq@db/miniq", "postgresql://miniq@db/miniq"),
        ("mongo://db/miniq", "mongodb://db/miniq"),
        ("mongodb:db/miniq", "mongodb://db/miniq"),
        ("RocksDB:data", "rocksdb:data"),
        ("rocksdb//data", "rocksdb:data"),
        ("rocksdb://data", "rocksdb:data"),
        ("rockdb:data", "rocksdb:data"),
        ("memory", "memory:"),
        ("leveldb://x", "leveldb:x"),
        ("memory:x", "memory:"),
        ("Memory:", "memory:"),
        (" http://127.0.0.1:5000", "http://127.0.0.1:5000"),
        ("http://127.0.0.1:5000\n", "http://127.0.0.1:5000"),
    ],
)
def test_what_is_no_url_is_refused_with_the_right_spelling(
    url: str, right: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    async def connected() -> None:
        await miniq.connect_async(url)

    for attempt in (lambda: miniq.connect(url), lambda: asyncio.run(connected())):
        with pytest.raises(miniq.InvalidRequest) as raised:
            attempt()
        assert f"use '{right}'" in raised.value.text
        assert raised.value.field == "url"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("url", ["", "redis://127.0.0.1", "data:x", "my folder:5/x", "sqlite:data.db", "rocksdb:"])
def test_what_cannot_be_guessed_is_refused_with_all_that_there_is(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(miniq.InvalidRequest) as raised:
        miniq.connect(url)
    assert repr(url) in raised.value.text
    assert "use http://HOST:PORT, tcp://HOST:PORT, a folder" in raised.value.text
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "url",
    ["data", "./127.0.0.1:5000", "./localhost", "data.v1", "a/b", "http", "queue-5000", "rocksdb:5000", "./memory"],
)
def test_a_folder_is_created(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").mkdir()
    with miniq.connect(url) as mq:
        mq.queue("q").send(1)
    assert (tmp_path / url.removeprefix("rocksdb:") / "MINIQ").exists()


def test_a_path_is_a_folder_whatever_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with miniq.connect(Path("localhost:5000")) as mq:
        mq.queue("q").send(1)
    assert (tmp_path / "localhost:5000" / "MINIQ").exists()


def test_a_tilde_in_the_path_of_a_store_is_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for url in ("~/plain", "rocksdb:~/named", Path("~/path")):
        with miniq.connect(url) as mq:
            mq.queue("jobs").send(1)
    assert sorted(folder.name for folder in tmp_path.iterdir()) == ["named", "path", "plain"]


def test_a_password_is_not_repeated_and_a_nul_is_refused() -> None:
    for url in (
        "http://user:s3cret@host",
        "http://user:s3:c/r@et@host",
        "htp://user:s3cret@host",
        "tcp://u:s3cret@h:1",
    ):
        with pytest.raises(miniq.InvalidRequest) as caught:
            miniq.connect(url)
        assert "s3" not in caught.value.text
    for wrong in ("\0", "a\0b", "http://a\0b", Path("a\0b")):
        with pytest.raises(miniq.InvalidRequest, match=r"^url: .*is not a URL; use http://HOST:PORT"):
            miniq.connect(wrong)


def test_a_scheme_of_its_own_is_not_taken_for_a_misspelt_one() -> None:
    with pytest.raises(
        miniq.InvalidRequest, match="cannot connect to 'ftp://x'; use http://HOST:PORT, tcp://HOST:PORT, a"
    ):
        miniq.connect("ftp://x")
