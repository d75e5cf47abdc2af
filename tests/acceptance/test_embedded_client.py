"""What is the embedded client's own: its folder, its options, its thread, its end."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import miniq
from miniq.store.embedded.backup import restore
from tests.acceptance.faces import Opener
from tests.acceptance.shell import complaints
from tests.conftest import ENGINES, store_url


def run(script: str, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-X", "dev", "-c", script, *args], capture_output=True, text=True, timeout=60, check=False
    )


# The rest of the surface


def test_a_backup_is_restored_to_a_store(opener: Opener, tmp_path: Path) -> None:
    mq = opener(tmp_path / "data")
    mq.queue("jobs").send(1)
    mq.backup(tmp_path / "copy")
    restore(str(tmp_path / "copy"), str(tmp_path / "restored"))
    assert opener(tmp_path / "restored").queue("jobs").receive()[0].body == 1
    with pytest.raises(miniq.InvalidRequest):
        opener("memory:").backup(tmp_path / "none")


# Wrong input: the same errors on both clients


@pytest.mark.parametrize("bad", ["udp://h:1", "sqlite:x", "rocksdb:", "", 7])
def test_a_url_that_cannot_be_connected_to_says_what_can(opener: Opener, bad: Any) -> None:
    with pytest.raises(miniq.InvalidRequest) as caught:
        opener(bad)
    assert caught.value.field == "url"
    assert repr(bad) in caught.value.text
    right = (
        "use http://HOST:PORT, tcp://HOST:PORT, a folder, rocksdb:DIR, leveldb:DIR, postgresql://USER@HOST/DATABASE, "
        "mongodb://HOST/NAME or memory:"
    )
    assert right in caught.value.text


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"durabilty": "fsync"}, "durabilty"),
        ({"durability": "maybe"}, "durability"),
        ({"auto_create": "no"}, "auto_create"),
        ({"limits": {"batch": "x"}}, "limits.batch"),
        ({"limits": {"batch": -1}}, "limits.batch"),
        ({"limits": {"batch": 0}}, "limits.batch"),
        ({"limits": {"bach": 5}}, "limits.bach"),
        ({"limits": 5}, "limits"),
        ({"stage_ttl": -1}, "stage_ttl"),
        ({"store": "memory:"}, "store"),
    ],
)
def test_a_wrong_option_is_named(opener: Opener, options: dict[str, Any], field: str) -> None:
    with pytest.raises(miniq.InvalidRequest) as caught:
        opener("memory:", **options)
    assert caught.value.field == field
    assert caught.value.text.startswith(f"{field}: ")


def test_options_reach_the_broker(opener: Opener) -> None:
    mq = opener("memory:", auto_create=False, limits={"batch": 2})
    with pytest.raises(miniq.QueueNotFound):
        mq.queue("jobs").send(1)
    with pytest.raises(miniq.TooLarge):
        mq.queue("default").send_many([1, 2, 3])


# Opening and closing


@pytest.mark.parametrize("engine", ENGINES)
def test_a_folder_that_is_open_is_refused_at_once(opener: Opener, tmp_path: Path, engine: str) -> None:
    url = store_url(engine, tmp_path)
    first = opener(url)
    with pytest.raises(miniq.StoreLocked, match="another folder"):
        opener(url)
    first.queue("jobs").send(1)
    first.close()
    assert opener(url).queue("jobs").receive()[0].body == 1


def test_the_async_client_is_awaited_or_entered(tmp_path: Path) -> None:
    async def main() -> None:
        mq = await miniq.connect_async(tmp_path)
        await mq.queue("a").send(1)
        await mq.close()
        async with miniq.connect_async(tmp_path) as mq:
            [m] = await mq.queue("a").receive(wait=1)
            async with m:
                assert m.body == 1

    asyncio.run(main())


def test_a_client_that_is_let_go_of_frees_its_folder(tmp_path: Path) -> None:
    mq = miniq.connect(tmp_path)
    mq.queue("a").send(1)
    del mq
    gc.collect()
    with miniq.connect(tmp_path) as mq:
        assert mq.queue("a").receive()[0].body == 1


@pytest.mark.parametrize("engine", ENGINES)
def test_a_forgotten_client_is_closed_when_the_interpreter_ends(tmp_path: Path, engine: str) -> None:
    url = store_url(engine, tmp_path)
    script = """
import atexit, sys
atexit.register(lambda: print("broker closed:", not mq._transport._core._thread.is_alive()))
import miniq
mq = miniq.connect(sys.argv[1])
mq.queue("a").send(1)
"""
    ended = run(script, url)
    assert (ended.returncode, ended.stdout, complaints(ended.stderr)) == (0, "broker closed: True\n", "")
    with miniq.connect(url) as mq:
        assert mq.queue("a").receive()[0].body == 1


def test_importing_miniq_imports_no_store_driver() -> None:
    ended = run("import sys, miniq; print([m for m in ('rocksdict', 'plyvel', 'miniq.store') if m in sys.modules])")
    assert (ended.stdout, complaints(ended.stderr)) == ("[]\n", "")


def test_a_missing_driver_leaves_no_folder_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plyvel", None)
    with pytest.raises(miniq.MissingExtra, match="LevelDB driver is not installed"):
        miniq.connect(f"leveldb:{tmp_path}/new")
    assert list(tmp_path.iterdir()) == []


def test_an_api_key_is_accepted_and_not_needed(tmp_path: Path) -> None:
    """So that a program can get its URL and key from outside, whatever the URL is."""
    with miniq.connect(tmp_path, api_key="mq_hidden") as mq:
        assert mq.whoami().open

    async def use() -> None:
        async with miniq.connect_async("memory:", api_key="mq_hidden") as mq:
            await mq.queues()

    asyncio.run(use())


def test_an_option_of_a_server_is_refused_as_such(tmp_path: Path) -> None:
    for name in ("host", "port", "tls_cert", "busy_poll"):
        with pytest.raises(miniq.InvalidRequest, match=f"{name}: is an option of `miniq serve`") as caught:
            miniq.connect(tmp_path / "new", **{name: 1})
        assert caught.value.field == name
    with pytest.raises(miniq.InvalidRequest, match="zzz: no such option") as caught:
        miniq.connect(tmp_path / "new", zzz=1)
    assert "auto_create" in caught.value.text
    assert "tls_cert" not in caught.value.text
    with pytest.raises(miniq.InvalidRequest, match="apikey: no such option") as caught:
        miniq.connect(tmp_path / "new", apikey="hidden")
    assert "hidden" not in caught.value.text
    assert list(tmp_path.iterdir()) == []


def test_a_client_that_is_not_awaited_says_so(tmp_path: Path) -> None:
    mq: Any = miniq.connect_async(tmp_path)
    with pytest.raises(AttributeError, match=r"queue: not connected yet; use `mq = await miniq\.connect_async"):
        mq.queue("jobs")
    assert not hasattr(mq, "__len__")


def test_a_misspelt_option_of_a_message_is_answered_with_the_nearest(tmp_path: Path) -> None:
    with miniq.connect("memory:") as mq:
        for send in (mq.queue("q").send, mq.topic("t").publish, miniq.draft):
            options: Any = {"prioritty": 1}
            with pytest.raises(TypeError, match="a message has no option 'prioritty'; did you mean 'priority'"):
                send(1, **options)


def test_a_setting_of_retries_out_of_range_is_said_to_be_so(tmp_path: Path) -> None:
    with miniq.connect("memory:") as mq:
        for factor, text in (
            (-1.0, "-1.0 is out of range; use 1 to 1000"),
            ("x", "'x' is not a number; use 1 to 1000"),
        ):
            wrong: Any = {"factor": factor}
            with pytest.raises(miniq.InvalidRequest, match=f"retry.factor: {text}"):
                mq.queue("q").configure(retry=wrong)


def test_limits_that_are_no_dict_are_refused(tmp_path: Path) -> None:
    limits: Any = 5
    with pytest.raises(miniq.InvalidRequest, match="limits: 5 is not a dict; use names"):
        miniq.connect(tmp_path / "new", limits=limits)


def test_an_unknown_limit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(miniq.InvalidRequest, match=r"limits\.batches: no such option"):
        miniq.connect(tmp_path / "new", limits={"batches": 1})
