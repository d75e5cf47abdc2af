"""Messages, queues, history, keys and backups from the command line, over HTTP and on a folder."""

from __future__ import annotations

import json
import signal
import time
import tomllib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import zmq

from miniq.cli.output import age
from miniq.cli.root import run
from tests.acceptance.shell import Shell, collect, environment, on_folder, serving
from tests.server import clear

FILE = str(Path(__file__).parents[2] / "ops" / "miniq.toml")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    with serving(tmp_path_factory.mktemp("broker")) as shell:
        yield shell


@pytest.fixture(params=["http", "folder"])
def miniq(request: pytest.FixtureRequest, server: Shell, tmp_path: Path) -> Shell:
    """The same commands against a broker and against a store in a folder."""
    if request.param == "folder":
        return on_folder(tmp_path)
    clear(server.url)
    return server


def test_bodies_are_json_if_they_parse_and_text_otherwise(miniq: Shell) -> None:
    bodies = ['{"a": 1}', "hello", "123", "true", '"quoted"', "not {json", "1.50", "ä€😀", ""]
    ids = miniq("send", "q", *bodies).lines
    found = miniq("peek", "q", "--json").objects
    assert [one["id"] for one in found] == ids
    assert [one["body"] for one in found] == [{"a": 1}, "hello", 123, True, "quoted", "not {json", 1.5, "ä€😀", ""]
    assert b'{"a": 1}\nhello\n123\ntrue\nquoted\n' in miniq("peek", "q", "--body").raw


def test_no_message_acts_on_the_terminal(miniq: Shell) -> None:
    hostile = "a\u202eb\u2066c"
    miniq("send", "q", hostile, "--text", "--header", f"task=t{hostile}", "--header", f"argsrepr=(1{hostile},)")
    for shown in (miniq("peek", "q").out, miniq("peek", "q", "--celery").out):
        assert "\u202e" not in shown
        assert "\u2066" not in shown
    assert "ta\\u202eb\\u2066c  1a\\u202eb\\u2066c  -" in shown
    assert miniq("peek", "q", "--json").objects[0]["body"] == hostile


def test_text_is_not_taken_for_json_when_told_so(miniq: Shell) -> None:
    miniq("send", "q", "123", "--text")
    miniq("send", "q", "123", "--content-type", "text/plain")
    found = miniq("peek", "q", "--json").objects
    assert [(one["body"], one["content_type"]) for one in found] == [("123", "application/json"), ("123", "text/plain")]


@pytest.mark.parametrize("dash", [[], ["-"]])
def test_lines_of_stdin_are_messages(miniq: Shell, dash: list[str]) -> None:
    sent = miniq("send", "q", *dash, "--json", stdin=b'one\r\n{"n": 2}\n\nlast without end').objects
    assert len(sent) == 4
    assert [one["body"] for one in miniq("peek", "q", "--json").objects] == ["one", {"n": 2}, "", "last without end"]


def test_a_line_of_stdin_that_is_not_utf_8_is_named_with_what_was_sent(miniq: Shell) -> None:
    lines = b"".join(b"%d\n" % n for n in range(1, 5001))
    refused = miniq("send", "many", stdin=lines + b"\xff\n", code=1)
    sent = len(refused.lines)
    assert sent
    assert refused.err == (
        f"miniq: line 5001: b'\\xff' is not UTF-8; send bytes with --file; {sent} messages were already sent; "
        "omit them if you retry\n"
    )
    assert miniq("send", "many", stdin=b"\xff\n", code=1).err.endswith("--file; nothing was sent\n")


def test_many_lines_of_stdin_keep_their_order(miniq: Shell) -> None:
    assert len(miniq("send", "q", stdin=b"".join(b"%d\n" % n for n in range(2500))).lines) == 2500
    found = miniq("peek", "q", "--json", "--max", "3000").objects
    assert [one["body"] for one in found] == list(range(2500))


def test_a_line_that_has_come_is_sent_before_the_next_one_comes(miniq: Shell) -> None:
    import subprocess
    import sys

    process = subprocess.Popen(
        [sys.executable, "-m", "miniq", "send", "q"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=miniq.env,
        cwd=miniq.folder,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"first\n")
    process.stdin.flush()
    assert len(process.stdout.readline().strip()) == 36
    process.communicate(timeout=30)
    assert process.returncode == 0


def test_a_file_is_one_message_as_it_is(miniq: Shell, tmp_path: Path) -> None:
    data = bytes(range(256))
    (tmp_path / "data.bin").write_bytes(data)
    miniq("send", "q", "--file", str(tmp_path / "data.bin"), "--content-type", "image/png")
    assert miniq("receive", "q", "--body", "--ack").raw == data + b"\n"


def test_every_field_of_a_message_can_be_given(miniq: Shell) -> None:
    miniq(
        "send", "q", "x", "--priority", "7", "--delay", "0.05", "--ttl", "5m", "--key", "k", "--recipient", "me",
        "--group", "g", "--dedup-id", "d", "--header", "a=1", "--header", "b=x=y",
    )  # fmt: skip
    miniq("send", "q", "y", "--dedup-id", "d")
    (found,) = miniq("receive", "q", "--wait", "5", "--consumer", "me", "--max", "9", "--json").objects
    wanted = {"priority": 7, "key": "k", "recipient": "me", "group": "g", "dedup_id": "d", "consumer": "me"}
    assert {name: found[name] for name in wanted} == wanted
    assert found["headers"] == {"a": "1", "b": "x=y"}
    assert "expires_at" in found


def test_a_message_is_received_released_extended_and_acked_by_its_receipt(miniq: Shell) -> None:
    (id,) = miniq("send", "q", '{"n": 1}').lines
    received, receipt, body = miniq("receive", "q").lines[0].split("\t")
    assert (received, json.loads(body)) == (id, {"n": 1})
    assert miniq("receive", "q").out == ""
    assert miniq("extend", "q", id, receipt, "--visibility-timeout", "10m", "--json").objects[0]["lease_until"]
    assert miniq("release", "q", id, receipt).out == "released\n"
    assert "was received again or released, or this is not its receipt" in miniq("ack", "q", id, receipt, code=1).err
    again, receipt, _ = miniq("receive", "q").lines[0].split("\t")
    assert again == id
    assert miniq("ack", "q", id, receipt, "--json").objects == [{"id": id, "outcome": "acked"}]
    assert miniq("ack", "q", id, receipt).out == "missing\n"


def test_receive_takes_as_many_as_asked_and_acks_when_asked(miniq: Shell) -> None:
    miniq("send", "q", *(str(n) for n in range(5)))
    assert [line.split("\t")[1] for line in miniq("receive", "q", "--max", "3", "--ack").lines] == ["0", "1", "2"]
    (found,) = miniq("receive", "q", "--at-most-once", "--json").objects
    assert found["body"] == 3
    (info,) = [one for one in miniq("queues", "--json").objects if one["name"] == "q"]
    assert (info["counts"]["ready"], info["counts"]["leased"]) == (1, 0)


def test_receive_waits_for_the_first_message(server: Shell) -> None:
    server("queues", "create", "waiting")
    process = server.start("receive", "waiting", "--wait", "60", "--ack", "--body")
    time.sleep(0.7)
    server("send", "waiting", "at last")
    out, _ = process.communicate(timeout=40)  # sooner than its wait is over
    assert out == b"at last\n"


def test_follow_goes_on_until_interrupted_and_that_is_no_failure(server: Shell) -> None:
    server("send", "followed", "1", "2")
    process = server.start("receive", "followed", "--follow", "--ack", "--body", "--max", "10")
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(2)] == [b"1\n", b"2\n"]
    server("send", "followed", "3")
    assert process.stdout.readline() == b"3\n"
    process.send_signal(signal.SIGINT)
    ended = collect(process)
    assert (ended.code, ended.err) == (0, "")


def test_what_nobody_reads_is_given_back(server: Shell) -> None:
    server("send", "piped", stdin=b"".join(b"%d %s\n" % (n, b"x" * 200) for n in range(1000)))
    process = server.start("receive", "piped", "--max", "1000", "--ack", "--body")
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr is not None
    assert process.wait(30) == 1
    assert process.stderr.read() == b""
    process.stderr.close()
    (info,) = [one for one in server("queues", "--json").objects if one["name"] == "piped"]
    assert info["counts"]["ready"] == 1000


def test_queues_are_created_changed_shown_and_deleted(miniq: Shell) -> None:
    (made,) = miniq("queues", "create", "q", "--visibility-timeout", "2m", "--max-receives", "3", "--json").objects
    assert (made["settings"]["visibility_timeout"], made["settings"]["max_receives"]) == (120, 3)
    assert "exists" in miniq("queues", "create", "q", code=1).err
    miniq(
        "queues", "set", "q", "--max-receives", "unlimited", "--retention", "2d", "--delay", "1", "--max-bytes", "64k",
        "--dedup-window", "0", "--max-length", "10", "--history", "full", "--dead-letter-queue", "other",
        "--claim-retention", "1m", "--retry-delay", "500ms", "--retry-factor", "3", "--retry-max", "1m",
        "--retry-jitter", "0", "--max-in-flight", "7", "--paused", "--rate", "2.5",
        "--group-batch", "--results", "1h", "--tag", "team=shop", "--tag", "old=",
    )  # fmt: skip
    shown = miniq("queues", "show", "q", "--json").objects[0]["settings"]
    assert shown == {
        "visibility_timeout": 120.0,
        "max_receives": None,
        "dead_letter_queue": "other",
        "retention": 172800.0,
        "delay": 1.0,
        "dedup_window": 0.0,
        "max_length": 10,
        "max_bytes": 65536,
        "history": "full",
        "claim_retention": 60.0,
        "retry": {"delay": 0.5, "factor": 3.0, "max": 60.0, "jitter": 0.0},
        "max_in_flight": 7,
        "rate": 2.5,
        "paused": True,
        "group_batch": True,
        "results": 3600.0,
        "tags": {"team": "shop"},
        "sqs": {},
    }
    assert [line.split(maxsplit=1) for line in miniq("queues", "show", "q").lines] == [
        ["queue", "q"],
        ["visibility_timeout", "2 m"],
        ["max_receives", "unlimited"],
        ["dead_letter_queue", "other"],
        ["retention", "2 d"],
        ["delay", "1 s"],
        ["dedup_window", "0 s"],
        ["max_length", "10"],
        ["max_bytes", "65536"],
        ["history", "full"],
        ["claim_retention", "1 m"],
        ["retry", "delay 500 ms, factor 3, max 1 m, jitter 0"],
        ["max_in_flight", "7"],
        ["rate", "2.5"],
        ["paused", "yes"],
        ["group_batch", "yes"],
        ["results", "1 h"],
        ["tags", "team=shop"],
        ["sqs", "-"],
        ["messages", "0 ready, 0 delayed, 0 leased"],
    ]
    assert "no queue 'nope'" in miniq("queues", "set", "nope", "--delay", "1", code=1).err
    assert "--yes" in miniq("queues", "delete", "q", code=2).err
    miniq("queues", "delete", "q", "--yes")
    assert "no queue 'q'" in miniq("queues", "show", "q", code=1).err
    assert "cannot be deleted" in miniq("queues", "delete", "default", "--yes", code=1).err


def test_one_receive_gets_several_messages_of_a_group_where_the_queue_allows_it(miniq: Shell) -> None:
    for flag, bodies in (("--no-group-batch", ["1"]), ("--group-batch", ["1", "2", "3"])):
        miniq("queues", "create", "q", flag)
        miniq("send", "q", "1", "2", "3", "--group", "ann")
        assert miniq("receive", "q", "--max", "9", "--body").lines == bodies
        miniq("queues", "delete", "q", "--yes")


def test_receive_tells_when_there_is_no_such_queue(miniq: Shell) -> None:
    got = miniq("receive", "nosuch", code=1)
    assert (got.out, "there is no queue 'nosuch'" in got.err) == ("", True)
    got = miniq("receive", "nosuch", "--wait", "50ms")
    assert (got.out, got.err) == ("", "miniq: queue 'nosuch' does not exist yet; waiting for its first message\n")
    assert [row["name"] for row in miniq("queues", "--json").objects] == ["default"]


def test_receive_waits_for_a_queue_that_does_not_exist_yet(server: Shell) -> None:
    clear(server.url)
    process = server.start("receive", "coming", "--wait", "60", "--ack", "--body")
    assert process.stderr is not None
    assert process.stderr.readline() == b"miniq: queue 'coming' does not exist yet; waiting for its first message\n"
    server("send", "coming", "hello")
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (0, b"hello\n", b"")


def test_the_table_of_queues_has_their_counts(miniq: Shell) -> None:
    miniq("send", "q", "1", "2", "3")
    miniq("send", "q", "4", "--delay", "1h")
    miniq("receive", "q")
    head, *rows = [line.split() for line in miniq("queues").lines]
    assert head == ["QUEUE", "READY", "DELAYED", "LEASED", "BYTES", "OLDEST"]
    (row,) = [row for row in rows if row[0] == "q"]
    assert row[1:6] == ["2", "1", "1", "4", "B"]
    assert row[6].endswith("s")
    assert miniq("queues", "--url", miniq.url, "show", "q").code == 0


def test_people_see_which_queues_are_paused(miniq: Shell) -> None:
    miniq("queues", "create", "q", "--paused")
    miniq("send", "q", "1")
    miniq("send", "other", "1")
    head, *rows = [line.split() for line in miniq("queues").lines]
    assert head[-1] == "STATE"
    assert {row[0]: row[-1] == "paused" for row in rows if row[0] in ("q", "other")} == {"q": True, "other": False}
    paused = "miniq: queue 'q' is paused; resume it with `miniq queues set q --no-paused`\n"
    for wait in ("0", "50ms"):
        got = miniq("receive", "q", "--wait", wait)
        assert (got.out, got.err) == ("", paused)
    miniq("queues", "set", "q", "--no-paused")
    assert miniq("receive", "q", "--ack", "--body").out == "1\n"
    assert miniq("receive", "q").err == ""


def test_purge_asks_and_without_a_terminal_needs_yes(miniq: Shell) -> None:
    miniq("send", "q", "1", "2")
    assert "use --yes" in miniq("purge", "q", code=2).err
    assert miniq("purge", "q", "--yes", "--json").objects == [{"purged": 2}]


def test_dead_letters_go_back(miniq: Shell) -> None:
    miniq("queues", "create", "q", "--max-receives", "1", "--visibility-timeout", "0")
    ids = miniq("send", "q", "1", "2", "3").lines
    miniq("receive", "q", "--max", "10")
    assert miniq("receive", "q", "--max", "10").out == ""
    assert [one["dead"]["origin"] for one in miniq("peek", "q.dead", "--json").objects] == ["q", "q", "q"]
    assert [line.split()[:4] for line in miniq("peek", "q.dead").lines[1:]] == [[id, "ready", "0", "1"] for id in ids]
    assert miniq("redrive", "q.dead", "--id", ids[1], "--to", "other").out == "moved 1 message to 'other' (created)\n"
    assert miniq("redrive", "q.dead", "--rate", "20", "--json").objects == [
        {"moved": 2, "skipped": 0, "running": False}
    ]
    assert [one["id"] for one in miniq("peek", "q", "--json").objects] == [ids[0], ids[2]]
    assert [one["id"] for one in miniq("peek", "other", "--json").objects] == [ids[1]]


def test_a_redrive_leaves_what_is_not_a_dead_letter(miniq: Shell) -> None:
    miniq("send", "q", "1", "2")
    assert miniq("redrive", "q").out == "moved 0 messages, skipped 2: 2 are not dead letters\n"


def test_a_rejected_message_has_no_delay(miniq: Shell) -> None:
    (id,) = miniq("send", "q", "1").lines
    receipt = miniq("receive", "q").lines[0].split("\t")[1]
    said = miniq("fail", "q", id, receipt, "--delay", "1m", "--dead", code=2).err
    assert "delay: given together with dead, and a rejected message is not delivered again" in said
    assert "or this is not its receipt" in miniq("fail", "q", id, "wrong", code=1).err
    assert miniq("fail", "q", id, receipt, "--dead").out == "dead\n"


def test_a_message_is_sent_for_a_moment_as_the_help_shows(miniq: Shell) -> None:
    moment = datetime.now(UTC) + timedelta(hours=1)
    (id,) = miniq("send", "q", "1", "--deliver-at", moment.strftime("%Y-%m-%dT%H:%M:%SZ")).lines
    assert miniq("peek", "q", "--status", "delayed", "--json").objects[0]["id"] == id
    late = (moment + timedelta(days=14)).isoformat()
    assert "use a moment at most 14 days from now" in miniq("send", "q", "1", "--deliver-at", late, code=2).err


def test_queues_are_managed_by_a_key_that_may_not_read(tmp_path: Path) -> None:
    with serving(tmp_path) as miniq:
        miniq("queues", "create", "jobs", "--max-receives", "1", "--visibility-timeout", "0")
        miniq("send", "jobs", *"123456789")
        miniq("receive", "jobs", "--max", "10")
        miniq("receive", "jobs", "--max", "10")
        boss = Shell(miniq.url, tmp_path, MINIQ_API_KEY=miniq("keys", "create", "ops", "--allow", "*").out.strip())
        allow = ("--allow", "manage:jobs*", "--allow", "send:jobs*")
        key = boss("keys", "create", "manager", *allow).out.strip()
        manager = Shell(miniq.url, tmp_path, MINIQ_API_KEY=key)
        assert "messages" not in manager("queues", "create", "jobs.new", "--visibility-timeout", "5").out
        assert "exists; change it" in manager("queues", "create", "jobs.new", code=1).err
        manager("queues", "set", "jobs.new", "--delay", "5")
        assert (
            "there is no queue 'jobs.none'; create it with `miniq queues create jobs.none`"
            in manager("queues", "set", "jobs.none", "--delay", "5", code=1).err
        )
        slow = manager("redrive", "jobs.dead", "--rate", "0.1")
        assert slow.out == "moved 0 messages, still running\n"
        assert "does not allow read" in slow.err
        assert "Remove all messages of queue jobs.dead?" in manager("purge", "jobs.dead", code=2).err
        manager("purge", "jobs.dead", "--yes")
        assert "Delete queue jobs.new with all its messages?" in manager("queues", "delete", "jobs.new", code=2).err
        manager("queues", "delete", "jobs.new", "--yes")
        names = {queue["name"]: queue["counts"]["ready"] for queue in boss("queues", "--json").objects}
        assert (names.keys(), names["jobs.dead"]) == ({"default", "jobs", "jobs.dead"}, 0)


def test_peek_shows_some_and_says_how_to_go_on(miniq: Shell) -> None:
    ids = miniq("send", "q", *(str(n) for n in range(5))).lines
    first = miniq("peek", "q", "--max", "2", "--json")
    assert [one["id"] for one in first.objects] == ids[:2]
    cursor = first.err.split("--after ")[1].strip()
    assert [one["id"] for one in miniq("peek", "q", "--after", cursor, "--json").objects] == ids[2:]
    assert miniq("peek", "q", "--id", ids[3]).lines[1].split()[0] == ids[3]
    assert miniq("peek", "q", "--status", "leased").out == ""


def test_history_tells_what_happened(miniq: Shell) -> None:
    miniq("queues", "create", "q", "--history", "events")
    (id,) = miniq("send", "q", "1").lines
    miniq("receive", "q", "--ack", "--consumer", "me")
    events = miniq("history", "--queue", "q", "--json").objects
    assert [(event["event"], event["id"]) for event in events] == [("sent", id), ("received", id), ("acked", id)]
    last = str(events[1]["offset"])
    assert [line.split()[2] for line in miniq("history", "--queue", "q", "--after", last).lines] == ["acked"]


def test_a_backup_is_restored(miniq: Shell, tmp_path: Path) -> None:
    miniq("send", "q", "1", "2")
    backup, folder = tmp_path / "backup", tmp_path / "restored"
    assert miniq("backup", str(backup)).out == f"backup in {backup}\n"
    miniq("send", "q", "3")
    assert miniq("restore", str(backup), str(folder)).out == f"rocksdb:{folder}\n"
    assert [one["body"] for one in miniq("peek", "q", "--json", "--url", str(folder)).objects] == [1, 2]
    assert "is not empty" in miniq("restore", str(backup), str(folder), code=1).err
    assert "exists" in miniq("backup", str(backup), code=1).err


def test_a_backup_over_http_needs_a_path_of_the_servers(server: Shell) -> None:
    assert "absolute" in server("backup", "relative", code=2).err


def test_a_backup_is_made_without_a_broker(tmp_path: Path) -> None:
    on_folder(tmp_path)
    miniq = Shell("http://127.0.0.1:1", tmp_path)
    miniq("send", "q", "1", "--url", "rocksdb:data")
    miniq("backup", "copy", "--store", "rocksdb:data")
    miniq("restore", "copy", "again")
    assert miniq("peek", "q", "--body", "--url", "again").out == "1\n"


def test_a_backup_is_restored_to_a_folder_and_to_no_other_url(tmp_path: Path) -> None:
    miniq = on_folder(tmp_path)
    miniq("send", "q", "1")
    assert "is a URL" in miniq("backup", "rocksdb:copy", code=2).err
    miniq("backup", "copy")
    for url in ("postgresql://u:secret@h/d", "memory:", "http://127.0.0.1:5000", "mongodb://h/d", "rocksdb://st"):
        err = miniq("restore", "copy", url, code=2).err
        assert "restore creates one" in err
        assert "secret" not in err
    assert "rocksdb:st" in miniq("restore", "copy", "leveldb:st", code=2).err
    before = set(tmp_path.iterdir())
    assert miniq("restore", "copy", "rocksdb:st").out == "rocksdb:st\n"
    assert {path.name for path in set(tmp_path.iterdir()) - before} == {"st"}
    assert miniq("peek", "q", "--body", "--url", "rocksdb:st").out == "1\n"


def test_a_key_is_not_revoked_by_its_name_but_its_id_is_named(tmp_path: Path) -> None:
    miniq = on_folder(tmp_path)
    miniq("send", "q", "1")
    miniq("keys", "create", "ops", "--allow", "*", "--store", "rocksdb:data")
    [key] = miniq("keys", "list", "--json", "--store", "rocksdb:data").objects
    assert f"Its id is {key['id']}." in miniq("keys", "revoke", "ops", "--store", "rocksdb:data", code=2).err
    miniq("keys", "revoke", key["id"], "--yes", "--store", "rocksdb:data")


def test_keys_are_made_without_a_broker_and_then_used_with_one(tmp_path: Path) -> None:
    away = Shell("http://127.0.0.1:1", tmp_path)
    first = ("keys", "create", "admin", "--allow", "*", "--store", "rocksdb:data")
    assert "There is no store in data. Create one?" in away(*first, code=2).err
    for other in (["list"], ["curve", "list"], ["revoke", "x"]):
        assert "store: there is no store in data" in away("keys", *other, "--store", "rocksdb:data", code=2).err
    assert list(tmp_path.iterdir()) == []
    made = away(*first, "--yes")
    admin = made.out.strip()
    assert admin.startswith("mq_")
    assert "not shown again" in made.err
    assert "first key: from now on, a server on this store refuses calls without a key" in made.err
    with serving(tmp_path) as miniq:
        assert "API key is required" in miniq("queues", code=1).err
        assert "is open in process" in miniq("keys", "list", "--store", "rocksdb:data", code=1).err
        boss = Shell(miniq.url, tmp_path, MINIQ_API_KEY=admin)
        (made_now,) = boss("keys", "create", "shop", "--allow", "send:orders.*", "--allow", "read", "--json").objects
        shop = Shell(miniq.url, tmp_path)
        shop("send", "orders.new", "1", "--api-key", made_now["secret"])
        assert "does not allow send" in shop("send", "other", "1", "--api-key", made_now["secret"], code=1).err
        listed = boss("keys", "list", "--json").objects
        assert {key["name"]: key["allow"] for key in listed} == {"admin": ["*"], "shop": ["send:orders.*", "read"]}
        assert "secret" not in listed[0]
        boss("keys", "revoke", made_now["id"])
        assert (
            "is unknown or was revoked" in shop("send", "orders.new", "1", "--api-key", made_now["secret"], code=1).err
        )
        assert "no key 'nope'" in boss("keys", "revoke", "nope", code=1).err
        assert "is not VERB:PATTERN" in boss("keys", "create", "x", "--allow", "sned:q", code=2).err
    assert "admin" in away("keys", "list", "--store", "rocksdb:data").out
    last = ("keys", "revoke", listed[0]["id"], "--store", "rocksdb:data")
    assert "This is the last key: the broker then refuses every call" in away(*last, code=2).err
    assert len(away("keys", "list", "--store", "rocksdb:data", "--json").objects) == 1, "nothing was revoked"
    assert away(*last, "--yes").out == f"revoked {listed[0]['id']}\n"
    assert away("keys", "list", "--store", "rocksdb:data", "--json").out == ""


def test_revoking_the_last_key_that_can_manage_keys_asks_first(tmp_path: Path) -> None:
    miniq = on_folder(tmp_path)
    for name, allow in (("admin", "*"), ("shop", "send:*")):
        miniq("keys", "create", name, "--allow", allow)
    admin, shop = miniq("keys", "list", "--json").objects
    assert "No other key allows admin" in miniq("keys", "revoke", admin["id"], code=2).err
    miniq("keys", "revoke", shop["id"])
    assert "id: '' is not a key id" in miniq("keys", "revoke", "", code=1).err
    assert [key["id"] for key in miniq("keys", "list", "--json").objects] == [admin["id"]]


def test_the_limits_of_keys_are_set_and_listed(tmp_path: Path) -> None:
    miniq = on_folder(tmp_path)
    miniq("keys", "create", "admin", "--allow", "*", "--max-queues", "7")
    miniq("keys", "curve", "create", "worker", "--allow", "send", "--max-queues", "8")
    for group, limit in ((["keys"], "7"), (["keys", "curve"], "8")):
        head, row = miniq(*group, "list").lines
        assert row[head.index("MAX QUEUES") :].split()[0] == limit


def test_commands_say_what_a_key_lacks(tmp_path: Path) -> None:
    with serving(tmp_path) as miniq:
        created = miniq("keys", "create", "admin", "--allow", "*")
        assert "allows * (every queue and topic); its secret" in created.err
        boss = Shell(miniq.url, tmp_path, MINIQ_API_KEY=created.out.strip())
        boss("queues", "create", "q", "--results", "60")
        secrets = {verb: boss("keys", "create", verb, "--allow", verb).out.strip() for verb in ("send", "receive")}
        sender, receiver = (Shell(miniq.url, tmp_path, MINIQ_API_KEY=secret) for secret in secrets.values())
        for what in ("queues", "topics", "schedules"):
            assert sender(what).err == f"miniq: key 'send' may read no {what}\n"
            assert boss(what).err == ""
        assert "key 'send' may read no queues" in sender("top", "--once").err
        assert "key 'receive' allows neither send nor read on queue 'q'" in receiver("result", "q", "x", code=1).err
        assert miniq("queues", code=1).err == "miniq: an API key is required: --api-key KEY, or MINIQ_API_KEY\n"
        unknown = Shell(miniq.url, tmp_path, MINIQ_API_KEY="nonsense")("queues", code=1).err
        assert unknown.endswith("(--api-key or MINIQ_API_KEY)\n")
        assert [one["name"] for one in boss("keys", "--json").objects] == ["admin", "send", "receive"]
        assert boss("keys").lines == boss("keys", "list").lines


def test_what_a_queue_has_by_default_is_shown_in_words(miniq: Shell) -> None:
    shown = dict(line.split(maxsplit=1) for line in miniq("queues", "create", "plain").lines)
    assert shown["dead_letter_queue"] == "plain.dead (default)"
    assert {shown[name] for name in ("max_length", "max_bytes", "max_in_flight", "rate")} == {"no limit"}
    assert "set QUEUE --results 1h" in miniq("result", "plain", "x", code=1).err


def test_an_age_has_at_most_one_decimal_below_a_second() -> None:
    assert [age(seconds) for seconds in (0.000433, 0.42, 3, 90)] == ["now", "0.4s", "3s", "1.5m"]


def test_a_broker_without_keys_left_stays_closed_and_the_folder_is_the_way_back(tmp_path: Path) -> None:
    on_folder(tmp_path)
    away = Shell("http://127.0.0.1:1", tmp_path)
    store = ("--store", "rocksdb:data")
    first = ("keys", "create", "shop", "--allow", "send", *store)
    assert "Create an admin key first (--allow '*'), or pass --yes" in away(*first, code=2).err
    assert away("keys", "list", *store, "--json").objects == [], "nothing was created"
    made = away(*first, "--yes", "--json")
    assert "no key allows admin" in made.err
    assert len(made.objects[0]["warnings"]) == 2
    away("keys", "revoke", made.objects[0]["id"], *store, "--yes")
    with serving(tmp_path) as miniq:
        assert "--allow '*' --store" in miniq("queues", code=1).err
    admin = away("keys", "create", "admin", "--allow", "*", *store).out.strip()
    with serving(tmp_path) as miniq:
        assert Shell(miniq.url, tmp_path, MINIQ_API_KEY=admin)("queues").out


def test_the_same_commands_work_over_zeromq(tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_bytes(b"one\r\ntwo\n\xff\nthree")
    with serving(tmp_path) as by_http:
        miniq = Shell(by_http.tcp, tmp_path)
        miniq("queues", "create", "q", "--visibility-timeout", "60")
        miniq("send", "q", '{"a": 1}', "text")
        (first, second) = miniq("receive", "q", "--max", "2", "--json").objects
        miniq("ack", "q", first["id"], first["receipt"])
        assert [one["id"] for one in miniq("peek", "q", "--json").objects] == [second["id"]]
        assert [one["name"] for one in by_http("queues", "--json").objects] == ["default", "q"]
        miniq("copy", "lines.txt", "copy.txt")
        assert (tmp_path / "copy.txt").read_bytes() == (tmp_path / "lines.txt").read_bytes()
        miniq("backup", str(tmp_path / "backup"))
        boss = Shell(by_http.tcp, tmp_path, MINIQ_API_KEY=miniq("keys", "create", "admin", "--allow", "*").out.strip())
        assert "an API key is required" in miniq("queues", code=1).err
        boss("keys", "curve", "create", "worker", "--allow", "send:q")
        (worker,) = boss("keys", "curve", "list", "--json").objects
        boss("keys", "curve", "revoke", worker["id"])
        assert [one["name"] for one in boss("keys", "list", "--json").objects] == ["admin"]
        assert "no key 'nope'" in boss("keys", "revoke", "nope", code=1).err
    assert "cannot be reached" in Shell(by_http.tcp, tmp_path)("queues", code=1).err


def test_curve_keys_are_made_listed_and_revoked(tmp_path: Path) -> None:
    on_folder(tmp_path)
    away = Shell("http://127.0.0.1:1", tmp_path)
    worker = ("keys", "curve", "create", "worker", "--allow", "send:jobs", "--store", "rocksdb:data")
    assert "so keys could be managed only with --store" in away(*worker, code=2).err
    made = away(*worker, "--yes")
    assert made.out == "worker.key\n"
    file = tmp_path / "worker.key"
    assert file.stat().st_mode & 0o077 == 0
    key = tomllib.loads(file.read_text())
    assert {len(half) for half in key.values()} == {40}
    again = away("keys", "curve", "create", "worker", "--allow", "*", "--store", "rocksdb:data", code=1)
    assert "File exists: worker.key" in again.err
    assert (
        "is not VERB:PATTERN"
        in away("keys", "curve", "create", "x", "--allow", "fly", "--store", "rocksdb:data", code=2).err
    )
    assert not (tmp_path / "x.key").exists()
    public = zmq.curve_keypair()[0].decode()
    theirs = away("keys", "curve", "create", "theirs", "--allow", "*", "--public", public, "--store", "rocksdb:data")
    assert theirs.out == key["server"] + "\n"
    assert (
        "is not the public half"
        in away(
            "keys", "curve", "create", "y", "--allow", "*", "--public", "short", "--store", "rocksdb:data", code=2
        ).err
    )
    listed = away("keys", "curve", "list", "--json", "--store", "rocksdb:data").objects
    assert [(one["name"], one["public"]) for one in listed] == [("worker", key["public"]), ("theirs", public)]
    assert key["public"] in away("keys", "curve", "list", "--store", "rocksdb:data").out
    assert away("keys", "list", "--json", "--store", "rocksdb:data").out == ""
    for one in listed:
        away("keys", "curve", "revoke", one["id"], "--store", "rocksdb:data", "--yes")
    assert away("keys", "curve", "list", "--json", "--store", "rocksdb:data").out == ""


@pytest.mark.parametrize(
    "command",
    [
        ["send", "q", "1"],
        ["receive", "q"],
        ["peek", "q"],
        ["queues"],
        ["purge", "q", "--yes"],
        ["history"],
        ["keys", "list"],
        ["produce", "q", "--workers", "2"],
        ["consume", "q"],
        ["copy", FILE, "copy"],
        ["import", FILE, "q", "--format", "csv"],
        ["export", "q", "file.jsonl"],
        ["bench"],
    ],
    ids=lambda command: command[0],
)
def test_a_broker_that_is_away_is_one_line_that_says_what_to_do(command: list[str], tmp_path: Path) -> None:
    said = Shell("http://127.0.0.1:1", tmp_path, MINIQ_LOG_LEVEL="info")(*command, code=1)
    assert said.out == ""
    assert said.err.startswith("miniq: ")
    assert said.err.count("\n") == 1
    assert "http://127.0.0.1:1" in said.err
    assert "miniq serve" in said.err
    assert list(tmp_path.iterdir()) == []


def test_what_a_broker_refuses_is_one_line(server: Shell) -> None:
    for command, said in [
        (["send", "bad name", "1"], "not a queue name"),
        (["send", "q", "1", "--key", "x" * 300], "at most 256"),
        (["queues", "create", "q9", "--visibility-timeout", "13h"], "out of range"),
        (["send", "q", "--file", "/dev/null", "--content-type", "nonsense"], "not a media type"),
    ]:
        result = server(*command, code=2)
        assert said in result.err
        assert result.err.count("\n") == 1


COMMANDS = [
    ["send", "q", "1"],
    ["receive", "q"],
    ["ack", "q", "id", "receipt"],
    ["peek", "q"],
    ["queues"],
    ["queues", "create", "q"],
    ["history"],
    ["keys", "list"],
    ["keys", "create", "k", "--allow", "*"],
    ["produce", "q", "--count", "1"],
    ["produce", "q", "--count", "2", "--workers", "2"],
    ["consume", "q", "--idle", "0"],
    ["copy", FILE, "copy"],
    ["import", FILE, "q", "--format", "csv"],
    ["export", "q", "file.jsonl"],
    ["backup", "copy"],
    ["bench"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command[:2]))
def test_a_client_command_never_creates_a_store(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    for url in ("./new", "empty", "rocksdb:new"):
        assert run([*command, "--url", url]) == 2
        said = capsys.readouterr()
        assert said.out == ""
        assert f"url: there is no store in {url.removeprefix('rocksdb:')}" in said.err
        assert "miniq serve --store rocksdb:" in said.err
    assert [path.name for path in tmp_path.rglob("*")] == ["empty"]


@pytest.mark.parametrize("command", [*COMMANDS, ["top"]], ids=lambda command: " ".join(command[:2]))
def test_an_address_without_a_scheme_is_refused_with_the_right_spelling(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run([*command, "--url", "127.0.0.1:5000"]) == 2
    by_flag = capsys.readouterr()
    monkeypatch.setenv("MINIQ_URL", "127.0.0.1:5000")
    assert run(command) == 2
    assert capsys.readouterr() == by_flag
    assert by_flag.out == ""
    assert "use 'http://127.0.0.1:5000'" in by_flag.err
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_url_does_not_matter_where_another_is_given(tmp_path: Path) -> None:
    on_folder(tmp_path)
    wrong = Shell("127.0.0.1:5000", tmp_path)
    assert wrong("queues", "--url", "data", "show", "default").code == 0
    assert wrong("queues", "show", "default", "--url", "data").code == 0
    assert wrong("keys", "list", "--store", "rocksdb:data").code == 0


def test_a_backup_of_no_store_is_refused(tmp_path: Path) -> None:
    miniq = Shell("http://127.0.0.1:1", tmp_path)
    assert "store: there is no store in data" in miniq("backup", "copy", "--store", "rocksdb:data", code=2).err
    assert (
        "store: cannot connect to 'localhost:5000'" in miniq("backup", "copy", "--store", "localhost:5000", code=2).err
    )
    assert list(tmp_path.iterdir()) == []


def test_a_url_that_is_none_is_refused(tmp_path: Path) -> None:
    assert "cannot connect" in Shell("gopher://x", tmp_path)("queues", code=2).err


def test_the_environment_is_clean() -> None:
    assert not [name for name in environment() if name.startswith("MINIQ_")]


def test_a_message_fails_with_its_error_and_a_rejected_one_is_dead(miniq: Shell) -> None:
    miniq("send", "q", "1")
    (held,) = miniq("receive", "q", "--json").objects
    out = miniq("fail", "q", held["id"], held["receipt"], "--error", "no route", "--delay", "0").out
    assert out.startswith("retried at 20")
    assert "no route" in miniq("peek", "q").out
    (held,) = miniq("receive", "q", "--json").objects
    assert held["error"] == "no route"
    (done,) = miniq("fail", "q", held["id"], held["receipt"], "--error", "bad", "--dead", "--json").objects
    assert done == {"id": held["id"], "outcome": "dead"}
    (dead,) = miniq("peek", "q.dead", "--json").objects
    assert (dead["dead"]["reason"], dead["dead"]["error"]) == ("rejected", "bad")
    assert "no message" in miniq("fail", "q", held["id"], held["receipt"], code=1).err
    assert "delay 1 s, factor 2, max 1 h, jitter 0.1" in miniq("queues", "show", "q").out


def test_a_result_is_given_with_an_ack_and_shown_by_id(miniq: Shell) -> None:
    miniq("queues", "create", "sums", "--results", "1h")
    assert "results" in miniq("queues", "show", "sums").out
    done, text, dead, left = miniq("send", "sums", "1", "2", "3", "4").out.split()
    held = miniq("receive", "sums", "--max", "3", "--json").objects
    assert miniq("result", "sums", done, code=1).out == "running\n"
    miniq("ack", "sums", done, held[0]["receipt"], "--result", '{"sum": [1, null]}')
    miniq("ack", "sums", text, held[1]["receipt"], "--result", "not JSON")
    miniq("fail", "sums", dead, held[2]["receipt"], "--error", "bad", "--dead")
    assert miniq("result", "sums", done, "--wait", "5s").out == 'done\n{"sum":[1,null]}\n'
    (found,) = miniq("result", "sums", text, "--json").objects
    assert found.pop("finished_at").endswith("Z")
    assert found == {"id": text, "status": "done", "result": "not JSON"}
    assert miniq("result", "sums", dead, code=1).out == "dead\nbad\n"
    assert miniq("result", "sums", left, "--wait", "0.05", code=1).out == "waiting\n"
    assert miniq("result", "sums", "never", code=1).out == "unknown\n"
    assert "keeps no results" in miniq("result", "default", "never", code=1).err
