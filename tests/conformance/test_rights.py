"""What a key with few rights cannot do, over every wire: nothing about queues on which it has none changes or shows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
import pyarrow
import pytest

from miniq.message import QueueSettings
from miniq.server.operations import OPERATIONS, Operation
from tests.conformance.wires import WIRES, HttpWire, Refusal, Wire
from tests.serving import serving

MINE = "/v1/queues/mine"
MARK = "classified"
LAST = ("purge", "delete_queue")
"""Operations after which there is less to try."""


class Holder:
    """A wire in the hands of someone who has a key."""

    def __init__(self, wire: Wire, secret: str) -> None:
        self.wire = wire
        self.key = {"authorization": f"Bearer {secret}"} if wire.name == "http" else {"api_key": secret}

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        return self.wire.ask(method, path, body, **headers, **self.key)

    def ok(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        reply = self.ask(method, path, body, **headers)
        assert not isinstance(reply, Refusal), reply
        return reply

    def code(self, method: str, path: str, body: Any = None) -> str:
        reply = self.ask(method, path, body)
        assert isinstance(reply, Refusal), reply
        return reply.code


class House(NamedTuple):
    """A broker with keys."""

    wire: Any
    admin: Holder

    def holder(self, *allow: str) -> tuple[Holder, str]:
        """Someone with a new key, and the key's id."""
        made = self.admin.ok("POST", "/v1/keys", {"name": "test", "allow": allow})
        return Holder(self.wire, made["secret"]), made["id"]


@pytest.fixture(params=list(WIRES), scope="module")
def house(request: pytest.FixtureRequest) -> Iterator[House]:
    with serving("memory:") as served:
        wire: Any = WIRES[request.param](served)
        made = wire.ask("POST", "/v1/keys", {"name": "admin", "allow": ["*"]})
        assert made["warnings"] == [
            "this is the first key: from now on, a server on this store refuses calls without a key"
        ]
        wire.secret = made["secret"]
        yield House(wire, Holder(wire, made["secret"]))
        wire.close()


@pytest.fixture
def victim(house: House) -> Iterator[str]:
    """A queue with messages, of which `mine` has a dead letter; it is the dead-letter queue of `mine`, too."""
    admin, path = house.admin, "/v1/queues/victim"
    admin.ok("PUT", path, {"max_receives": 1, "dead_letter_queue": "mine", "history": "full"})
    admin.ok("PUT", MINE, {"max_receives": 20, "dead_letter_queue": "victim"})
    admin.ok("POST", f"{path}/messages", {"body": "died"})
    (lease,) = admin.ok("POST", f"{path}/receive", {})["messages"]
    admin.ok("POST", f"{path}/release", {"leases": [{"id": lease["id"], "receipt": lease["receipt"]}]})
    admin.ok("POST", f"{path}/messages", {"messages": [{"body": MARK, "key": MARK}] * 3})
    admin.ok("POST", f"{path}/receive", {"visibility_timeout": 600})
    admin.ok("POST", f"{path}/claims", {"group": "g", "after": 0, "max_messages": 1})
    admin.ok("POST", f"{path}/stages/j/b/p/a", {"messages": [{"body": MARK}]})
    (ready,) = admin.ok("GET", f"{path}/messages?status=ready")["messages"]
    yield ready["id"]
    for queue in ("victim", "mine"):
        admin.ask("DELETE", f"/v1/queues/{queue}")


def state(admin: Holder) -> Any:
    """Everything about the victim."""
    paths = ("", "/messages?limit=1000", "/claims", "/stages")
    return [admin.ask("GET", f"/v1/queues/victim{path}") for path in paths] + [
        admin.ok("GET", "/v1/history?queue=victim&limit=1000"),
        sorted(queue["name"] for queue in admin.ok("GET", "/v1/queues")["queues"] if queue["name"] != "mine"),
    ]


FILLED: dict[str, Any] = {
    "group": "g", "claim": 1, "job": "j", "batch": "b", "partition": "p", "attempt": "a", "after": 0, "upto": 0,
    "leases": [{"id": "x", "receipt": "y"}], "stages": [{"partition": "p", "attempt": "a"}],
    "messages": [{"body": 1}], "name": "n", "allow": ["send:mine"], "path": "/nowhere", "id": "x", "error": "e",
    "ids": ["x"], "reason": "r", "topic": "mine",
}  # fmt: skip
"""Values of fields that calls require."""


def fields_of(operation: Operation) -> dict[str, list[str]]:
    """All fields of a call by where they are sent."""
    shape = None if operation.body is None else operation.body.shape
    body = [info.encode_name for info in msgspec.structs.fields(shape)] if isinstance(shape, type) else []
    if operation.name == "configure":
        body = list(QueueSettings.__struct_fields__)
    return {"path": list(operation.in_path), "query": list(operation.in_query), "body": body}


def required(operation: Operation) -> dict[str, Any]:
    body: dict[str, Any] = {}
    shape = None if operation.body is None else operation.body.shape
    if isinstance(shape, type) and operation.name not in ("send", "publish", "edit"):
        body = {info.name: FILLED[info.name] for info in msgspec.structs.fields(shape) if info.required}
    if operation.name in ("send", "publish", "edit"):
        body = {"body": 1}
    path = {name: FILLED.get(name) for name in operation.in_path} | {"queue": "mine"}
    query = {name: FILLED[name] for name, info in operation.in_query.items() if info.required}
    return {"path": path, "query": query, "body": body}


def attempts(operation: Operation, id: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The call with, in turn, each field naming the victim: as text, in a list, or by the id of a message; and with the
    victim and its message in the path."""
    yield "nothing", required(operation)
    if "queue" in operation.in_path:
        call = required(operation)
        call["path"] |= {"queue": "victim", "id": id}
        yield "path", call
    for place, names in fields_of(operation).items():
        for name in names:
            for value in ("victim", ["victim"], id, [id], [{"id": id, "receipt": "*"}], [f"send:{id}"]):
                if place != "body" and not isinstance(value, str):
                    continue
                call = required(operation)
                call[place][name] = value
                yield f"{name}={value}", call


def ask(holder: Holder, operation: Operation, call: dict[str, Any]) -> Any:
    path = operation.path.format_map(call["path"])
    query = "&".join(f"{name}={value}" for name, value in call["query"].items())
    body = call["body"] if operation.body is not None else None
    return holder.ask(operation.method, f"{path}?{query}" if query else path, body)


ORDER = sorted(OPERATIONS, key=lambda operation: operation.name in LAST and LAST.index(operation.name) + 1)


def test_no_field_of_any_call_reaches_a_queue_on_which_the_key_has_no_right(house: House, victim: str) -> None:
    holder, _ = house.holder("*:mine")
    before = state(house.admin)
    tried = 0
    for operation in ORDER:
        for named, call in attempts(operation, victim):
            reply = ask(holder, operation, call)
            shown = json.dumps(reply, default=repr)
            assert MARK not in shown, (operation.name, named)
            if operation.own:
                for own in ('"dead_letter_queue": "victim"', '"group": "victim"'):  # settings and groups of `mine`
                    shown = shown.replace(own, "")
                assert "victim" not in shown or isinstance(reply, Refusal)
            if call["path"].get("queue") == "victim" or call["query"].get("queue") == "victim":
                refused = isinstance(reply, Refusal) and reply.code == "forbidden"
                assert refused or operation.name == "whoami", (operation.name, named, reply)
            tried += 1
        assert state(house.admin) == before, operation.name
    assert tried > 300


def test_the_same_calls_reach_it_with_a_key_that_may(house: House, victim: str) -> None:
    """The opposite of the test above: it is not blind."""
    if house.wire.name == "http":
        return  # one wire is enough, and this one takes longer
    holder, _ = house.holder("*")
    changed = set()
    for operation in ORDER:
        before = state(house.admin)
        for _, call in attempts(operation, victim):
            ask(holder, operation, call)
        if state(house.admin) != before:
            changed.add(operation.name)
    assert changed >= {"send", "receive", "redrive", "commit_stages", "purge", "delete_queue"}


def test_a_dead_letter_queue_needs_the_right_to_send_to_it(house: House) -> None:
    holder, _ = house.holder("manage:mine", "send:mine.*")
    refused = holder.ask("PUT", MINE, {"dead_letter_queue": "victim"})
    assert (refused.status, refused.code) == (403, "forbidden")
    assert "does not allow send on queue 'victim'" in refused.text
    assert house.admin.code("GET", MINE) == "queue_not_found", "nothing was created"
    assert holder.ok("PUT", MINE, {"dead_letter_queue": "mine.late"})["settings"]["dead_letter_queue"] == "mine.late"
    assert holder.ok("PUT", MINE, {"dead_letter_queue": None})["settings"]["dead_letter_queue"] is None
    house.admin.ok("DELETE", MINE)


def test_a_redrive_needs_the_right_to_send_to_its_target_or_to_each_source(house: House, victim: str) -> None:
    holder, _ = house.holder("manage:mine")
    before = state(house.admin)
    assert holder.code("POST", f"{MINE}/redrive", {"to": "victim"}) == "forbidden"
    left = {"moved": 0, "skipped": 1, "running": False, "reasons": {"forbidden": 1}}
    assert holder.ok("POST", f"{MINE}/redrive", {}) == left
    assert state(house.admin) == before
    sender, _ = house.holder("manage:mine", "send:victim")
    assert sender.ok("POST", f"{MINE}/redrive", {})["moved"] == 1


def test_a_redrive_creates_no_source_queue_beyond_the_queues_of_its_key(house: House, victim: str) -> None:
    made = {"name": "test", "allow": ["manage:mine", "send:victim"], "max_queues": 1}
    holder = Holder(house.wire, house.admin.ok("POST", "/v1/keys", made)["secret"])
    house.admin.ok("DELETE", "/v1/queues/victim")
    left = {"moved": 0, "skipped": 1, "running": False, "reasons": {"too_many_queues": 1}}
    assert holder.ok("POST", f"{MINE}/redrive", {}) == left
    assert holder.code("POST", f"{MINE}/redrive", {"to": "victim"}) == "too_many_queues"
    assert house.admin.code("GET", "/v1/queues/victim") == "queue_not_found"
    assert house.admin.ok("POST", f"{MINE}/redrive", {})["moved"] == 1


def test_who_may_manage_but_not_read_sees_neither_counts_nor_contents(house: House) -> None:
    holder, _ = house.holder("manage:mine")
    sent = {"body": MARK, "key": MARK, "headers": {"h": MARK}, "group": MARK, "dedup_id": MARK}
    (id,) = house.admin.ok("POST", f"{MINE}/messages", sent)["ids"]
    assert holder.ok("PUT", MINE, {"delay": 0})["counts"] is None
    edited = holder.ok("PATCH", f"{MINE}/messages/{id}", {"priority": 3})
    assert MARK not in json.dumps(edited)
    assert (edited["id"], edited["priority"], edited["status"]) == (id, 3, "ready")
    for path in ("", "/messages", f"/messages/{id}", "/claims", "/stages"):
        assert holder.code("GET", f"{MINE}{path}") == "forbidden"
    assert holder.ok("POST", f"{MINE}/redrive", {"ids": ["x"]})["reasons"] == {"missing": 1}
    reader, _ = house.holder("manage:mine", "read:mine")
    assert reader.ok("PUT", MINE, {"delay": 0})["counts"]["ready"] == 1
    assert reader.ok("PATCH", f"{MINE}/messages/{id}", {"priority": 4})["body"] == MARK
    assert holder.ok("POST", f"{MINE}/purge") == {"purged": 1}, "what a call itself did is shown"
    house.admin.ok("DELETE", MINE)


def test_who_may_manage_a_topic_but_not_read_it_sees_no_subscriptions(house: House) -> None:
    house.admin.ok("PUT", "/v1/topics/mine/subscriptions/theirs", {"filter": {"h": [MARK]}})
    holder, _ = house.holder("manage:mine")
    changed = holder.ok("PUT", "/v1/topics/mine", {"dedup_window": 5})
    assert (changed["settings"]["dedup_window"], changed["subscriptions"], changed["rates"]) == (5, None, None)
    reader, _ = house.holder("manage:mine", "read:mine")
    assert MARK in json.dumps(reader.ok("PUT", "/v1/topics/mine", {"dedup_window": 6})["subscriptions"])
    house.admin.ok("DELETE", "/v1/topics/mine")
    house.admin.ok("DELETE", "/v1/queues/theirs")


def test_the_count_of_dead_letters_needs_the_right_to_read_them(house: House, victim: str) -> None:
    for allow, dead in (("read:mine", None), ("read", 3)):
        holder, _ = house.holder(allow)
        (stats,) = holder.ok("GET", "/v1/stats?queue=mine")["queues"]
        assert (stats["dead_letter_queue"], stats["dead"]) == ("victim", dead)


def test_history_shows_the_events_of_the_queues_that_a_key_may_read(house: House) -> None:
    admin, queues = house.admin, ("orders.a", "hidden", "orders.b")
    for queue in queues:
        admin.ok("PUT", f"/v1/queues/{queue}", {"history": "events"})
    start = admin.ok("GET", "/v1/history?limit=1")["last"]
    for count in (1, 20, 1):
        for queue in queues:
            admin.ok("POST", f"/v1/queues/{queue}/messages", {"messages": [{"body": 1}] * count})
    reader, _ = house.holder("read:orders*")
    whole = reader.ok("GET", f"/v1/history?after={start}&limit=1000")
    sent = [event["queue"] for event in whole["events"]]
    assert sent == ["orders.a", "orders.b"] + ["orders.a"] * 20 + ["orders.b"] * 20 + ["orders.a", "orders.b"]
    paged, after = [], start
    while (page := reader.ok("GET", f"/v1/history?after={after}&limit=3"))["next"] > after:
        paged, after = paged + page["events"], page["next"]
    assert paged == whole["events"]
    for path in ("/v1/history?queue=orders.b&limit=1000", "/v1/history?event=sent&limit=1000"):
        assert {event["queue"] for event in reader.ok("GET", path)["events"]} <= {"orders.a", "orders.b"}
    assert reader.code("GET", "/v1/history?queue=hidden") == "forbidden"
    sender, _ = house.holder("send:orders*")
    assert sender.ok("GET", f"/v1/history?after={start}")["events"] == []
    if isinstance(house.wire, HttpWire):
        arrow = {"accept": "application/vnd.apache.arrow.stream"}
        _, raw, headers = house.wire.call("GET", f"/v1/history?after={start}&limit=1000", **reader.key, **arrow)
        table = pyarrow.ipc.open_stream(raw).read_all()
        assert table.column("queue").to_pylist() == sent
        _, raw, headers = house.wire.call("GET", f"/v1/history?after={start + 1}&limit=1", **reader.key, **arrow)
        assert pyarrow.ipc.open_stream(raw).read_all().column("queue").to_pylist() == ["orders.b"]
        assert headers["miniq-next"] == str(start + 3), "what is hidden is skipped"
    for queue in queues:
        admin.ok("DELETE", f"/v1/queues/{queue}")


def test_a_refusal_says_which_permission_would_do(house: House) -> None:
    holder, _ = house.holder("read:orders*")
    for name in ("x" * 8000, "a%20b"):
        assert holder.code("GET", f"/v1/whoami?queue={name}") == "bad_name"
    refused = holder.ask("GET", "/v1/keys")
    assert "does not allow admin on all queues (`admin` or `admin:*`)" in refused.text


def test_topics_need_rights_of_their_own(house: House) -> None:
    topic, admin = "/v1/topics/orders", house.admin
    subscription = f"{topic}/subscriptions/billing"
    publisher, _ = house.holder("publish:orders")
    manager, _ = house.holder("manage:orders")
    subscriber, _ = house.holder("manage:orders", "send:billing")
    reader, _ = house.holder("read:orders")
    sender, _ = house.holder("send:orders", "receive:orders")
    refused = manager.ask("PUT", subscription)
    assert "does not allow send on queue 'billing'" in refused.text
    assert manager.code("PUT", f"{topic}/subscriptions/x", {"queue": "victim"}) == "forbidden"
    assert subscriber.code("PUT", "/v1/topics/others/subscriptions/billing") == "forbidden"
    assert subscriber.code("PUT", subscription, {"queue": "others"}) == "forbidden"
    subscriber.ok("PUT", subscription)
    assert publisher.ok("POST", f"{topic}/messages", {"body": 1})["queues"] == 1
    for holder in (manager, reader, sender):
        refused = holder.ask("POST", f"{topic}/messages", {"body": 1})
        assert "does not allow publish on topic 'orders'" in refused.text
    staged = f"{topic}/stages/etl/7"
    for holder in (manager, reader, sender):
        assert holder.code("POST", f"{staged}/0/1", {"messages": []}) == "forbidden"
        assert holder.code("POST", f"{staged}/commit", {"stages": []}) == "forbidden"
        assert holder.code("DELETE", staged) == "forbidden"
    assert publisher.ok("POST", f"{staged}/0/1", {"messages": [{"body": 1}]})["messages"] == 1
    assert publisher.code("GET", f"{topic}/stages") == "forbidden"
    assert len(reader.ok("GET", f"{topic}/stages")["stages"]) == 1
    assert publisher.ok("DELETE", staged) == {"discarded": 1}
    for method, path in (("GET", topic), ("POST", f"{topic}/match")):
        assert len(reader.ok(method, path)["subscriptions"]) == 1
        assert publisher.code(method, path) == "forbidden"
    for holder in (publisher, reader, sender):
        for method, path in (("PUT", topic), ("DELETE", topic), ("PUT", subscription), ("DELETE", subscription)):
            assert holder.code(method, path) == "forbidden"
    assert [one["name"] for one in reader.ok("GET", "/v1/topics")["topics"]] == ["orders"]
    assert publisher.ok("GET", "/v1/topics")["topics"] == []
    manager.ok("DELETE", subscription)
    manager.ok("DELETE", topic)
    admin.ok("DELETE", "/v1/queues/billing")


def test_an_idempotency_key_belongs_to_its_sender(house: House) -> None:
    first, second = (house.holder("send:mine")[0] for _ in range(2))
    for number, holder in enumerate((first, second)):
        for body in ({"body": number}, {"messages": [{"body": number, "priority": 2}]}):
            name = f"order-{len(body)}{list(body)}".replace('"', "")
            sent = [holder.ok("POST", f"{MINE}/messages", body, idempotency_key=name) for _ in range(2)]
            assert sent[0] == sent[1]
            refused = holder.ask("POST", f"{MINE}/messages", {"body": "other"}, idempotency_key=name)
            assert (refused.status, refused.code) == (422, "idempotency_mismatch")
    assert house.admin.ok("GET", MINE)["counts"]["total"] == 4
    house.admin.ok("DELETE", MINE)


@pytest.mark.parametrize(
    ("path", "body"),
    [("receive", {"wait": 20}), ("receive", {"wait": 20, "mode": "at-most-once"}),
     ("claims", {"group": "g", "after": 0, "wait": 20})],
    ids=["receive", "at-most-once", "claim"],
)  # fmt: skip
def test_a_call_that_waits_ends_when_its_key_is_revoked(house: House, path: str, body: dict[str, Any]) -> None:
    house.admin.ok("PUT", MINE, {})
    holder, id = house.holder("receive:mine")
    poll = house.wire.begin("POST", f"{MINE}/{path}", body, **holder.key)
    holder.ok("POST", f"{MINE}/receive", {})  # the poll before it has been read
    house.admin.ok("DELETE", f"/v1/keys/{id}")
    refused = poll.end()
    assert (refused.status, refused.code) == (401, "unauthorized")
    house.admin.ok("POST", f"{MINE}/messages", {"body": "afterwards"})
    assert house.admin.ok("GET", MINE)["counts"]["ready"] == 1
    house.admin.ok("DELETE", MINE)


def test_a_broker_whose_last_key_was_revoked_refuses_everybody(request: pytest.FixtureRequest) -> None:
    with serving("memory:") as served:
        for name, connect in WIRES.items():
            wire: Any = connect(served)
            if name == "http":
                made = wire.ask("POST", "/v1/keys", {"name": "only", "allow": ["*"]})
                holder = Holder(wire, made["secret"])
                holder.ok("DELETE", f"/v1/keys/{made['id']}")
            for headers in ({}, {"authorization" if name == "http" else "api_key": "Bearer nothing"}):
                for method, path in (("GET", "/v1/queues"), ("POST", "/v1/keys")):
                    body = {"name": "mine", "allow": ["*"]} if method == "POST" else None
                    refused = wire.ask(method, path, body, **headers)
                    assert (refused.status, "miniq keys create NAME" in refused.text) == (401, True)
            wire.close()


def test_other_routes_of_http_show_no_more(house: House, victim: str) -> None:
    if not isinstance(house.wire, HttpWire):
        return
    holder, _ = house.holder("*:mine")
    for path in ("/metrics", "/v1/report", "/v1/keys", "/dev/messages", "/messages", "/read_messages"):
        status, _, _ = house.wire.call("GET", path, **holder.key)
        assert status == 403, path
    _, events, _ = house.wire.call("GET", "/v1/events?count=1", **holder.key)
    (data,) = [json.loads(line[6:]) for line in events.decode().splitlines() if line.startswith("data: ")]
    assert [(queue["name"], queue["dead"]) for queue in data["queues"]] == [("mine", None)]


def test_a_key_sees_the_claims_and_failures_of_its_queues_alone(house: House) -> None:
    for queue in ("seen", "unseen"):
        house.admin.ok("POST", f"/v1/queues/{queue}/messages", {"body": 1})
        house.admin.ok("POST", f"/v1/queues/{queue}/claims", {"group": "etl", "after": 0})
    reader, _ = house.holder("read:seen")
    assert {one["queue"] for one in house.admin.ok("GET", "/v1/claims")["groups"]} >= {"seen", "unseen"}
    assert [one["queue"] for one in reader.ok("GET", "/v1/claims")["groups"]] == ["seen"]
    assert reader.ok("GET", "/v1/queues/seen/failures") == {"failures": []}
    assert reader.code("GET", "/v1/queues/unseen/failures") == "forbidden"
