"""A field of a message is carried everywhere: lists of fields that are written by hand, or derived, lack none."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any, get_args

import msgspec
import pytest
from bson import ObjectId
from msgspec.structs import replace

from miniq.api import codec, messages, shapes
from miniq.broker import rules
from miniq.cli.messages import send
from miniq.client.bodies import draft
from miniq.client.delivery import Delivery
from miniq.errors import TooLarge
from miniq.ids import IdSource
from miniq.message import (
    SHOWN,
    DeadLetter,
    Draft,
    DraftOptions,
    Message,
    QueueChanges,
    QueueSettings,
    Stored,
    is_plain,
)
from miniq.options import Limits
from miniq.server.http.console import files
from miniq.store.arguments import Edit
from miniq.store.decisions import plain_batch
from miniq.store.embedded import block_records
from miniq.store.mongodb.blocks import block_of, blocks_for
from miniq.store.postgres import rows

ID = "00000000-0000-7000-8000-000000000000"
PLAIN = Message(ID, "q", 1, 2, b"3")
SAMPLES: dict[type, Any] = {
    str: "text/x",
    datetime: datetime(2027, 1, 31, 8, tzinfo=UTC),
    int: 5,
    float: 5.0,
    bool: True,
    bytes: b"4",
    DeadLetter: DeadLetter("o", "r", 1, 2**40, "why"),
}


def sample(kind: Any) -> Any:
    """A value of a field that is not its default."""
    for type, value in SAMPLES.items():
        if type in (kind, *getattr(kind, "__args__", ())):
            return value
    assert "dict" in str(kind), f"what is a value of {kind}?"
    return {"name.$": "value"}


OPTIONAL = [field for field in msgspec.structs.fields(Message) if not field.required]
GIVEN = [field for field in msgspec.structs.fields(Draft) if field.name not in ("delay", "ttl", "deliver_at")]
each_field = pytest.mark.parametrize("field", OPTIONAL, ids=lambda field: field.name)


def with_field(field: Any) -> Message:
    return replace(PLAIN, **{field.name: sample(field.type)})


@each_field
def test_a_message_with_it_is_written_to_a_block_and_read_again(field: Any) -> None:
    message = with_field(field)
    assert list(block_records.decode_block(block_records.encode_block([message]), lambda key: None)) == [message]
    assert is_plain(message) == (field.name in ("content_type", "priority", "topic"))


@each_field
def test_a_message_with_it_becomes_a_row_and_a_message_again(field: Any) -> None:
    message = with_field(field)
    row = (ID, 1, 2, -message.priority, 0, rows.about(message), b"3", None)
    assert rows.messages("q", row) == [message]
    assert (plain_batch([message]) is None) == (not is_plain(message))


@each_field
def test_a_message_with_it_becomes_a_document_and_a_message_again(field: Any) -> None:
    message = with_field(field)
    [block] = blocks_for([message], ObjectId())
    assert block_of(block.document(5) | {"v": ObjectId()}).messages[0] == message


@pytest.mark.parametrize("field", GIVEN, ids=lambda field: field.name)
def test_what_a_sender_gives_is_in_the_message(field: Any) -> None:
    value = sample(field.type)
    draft = replace(Draft(b"1"), **{field.name: value})
    staged = rules.stage("q", QueueSettings(), [draft], Limits())
    for (message,) in (staged, rules.admit("q", QueueSettings(), [draft], IdSource(), 1, Limits())):
        assert getattr(message, field.name) == value


@pytest.mark.parametrize("field", msgspec.structs.fields(Draft), ids=lambda field: field.name)
def test_drafts_are_alike_only_where_they_differ_in_nothing_but_their_bodies(field: Any) -> None:
    draft = Draft(b"1")
    other = replace(draft, **{field.name: sample(field.type)})
    assert rules._alike([draft, other], draft) == (field.name == "body")


def test_an_edit_names_fields_of_the_message() -> None:
    assert set(Edit.__struct_fields__) < set(Message.__struct_fields__)


def test_the_keywords_of_send_and_configure_are_the_fields_of_the_records() -> None:
    assert set(DraftOptions.__annotations__) == set(Draft.__struct_fields__) - {"body"}
    assert set(QueueChanges.__annotations__) == set(QueueSettings.__struct_fields__)


@pytest.mark.parametrize("field", msgspec.structs.fields(Draft)[1:], ids=lambda field: field.name)
def test_what_a_sender_gives_is_on_the_wire(field: Any) -> None:
    given = draft(b"1" if field.name == "content_type" else 1, **{field.name: sample(field.type)})
    (wire,) = messages.wire_drafts([given])
    read = codec.Reader(shapes.SendBody).read(codec.encode(wire, "json"), "json")
    assert messages.draft_of(read, "json") == given != Draft(b"1")


@pytest.mark.parametrize("field", [one for one in OPTIONAL if one.name != "lifetime"], ids=lambda field: field.name)
def test_a_message_with_it_is_read_by_a_client_as_the_broker_wrote_it(field: Any) -> None:
    """All but what only the broker needs."""
    message = with_field(field)
    (wire,) = messages.wire_messages([Stored(message, 9)], "json")
    read: Any = msgspec.json.decode(codec.encode(wire, "json"), type=messages.Received)
    assert getattr(read.message, field.name) == getattr(message, field.name)
    assert read.body == message.body


def test_a_received_message_has_all_that_its_sender_gave() -> None:
    assert all(hasattr(Delivery, name) for name in SHOWN)


@pytest.mark.parametrize("field", Draft.__struct_fields__[1:])
def test_what_a_sender_gives_can_be_given_by_the_command_and_in_the_console(field: str) -> None:
    assert field in {parameter.name for parameter in send.params}
    dialog = files()["compose.js"].text.decode()
    assert re.search(rf"\b{field}\b", dialog.partition("export async function edit")[0])


@pytest.mark.parametrize(
    "field", [one.name for one in msgspec.structs.fields(Draft) if str in (one.type, *get_args(one.type))]
)
def test_a_text_that_a_sender_gives_has_a_limit(field: str) -> None:
    with pytest.raises(TooLarge, match=field):
        rules.check_draft(replace(Draft(b"1"), **{field: "a/" + "x" * 100_000}), Limits())
