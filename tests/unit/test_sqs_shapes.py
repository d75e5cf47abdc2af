"""Every request and reply of SQS against the model that AWS publishes for its SDKs."""

from __future__ import annotations

import json
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import pytest

from miniq.server.http.aws.actions import ACTIONS as ALL
from miniq.server.http.aws.errors import AwsError
from miniq.server.http.aws.protocols import JsonProtocol
from miniq.server.http.aws.sqs.queue_attributes import NAMES
from miniq.server.http.aws.sqs.receiving import SYSTEM_ATTRIBUTES
from miniq.server.http.aws.wire import MODULES
from tests.sqs import SESSIONS

ACTIONS = ALL["sqs"]
MODEL: Any = SESSIONS["json"].get_service_model("sqs")
EMPTY: dict[str, Any] = {"list": [], "map": {}, "integer": 1}
KINDS = {str: {"string"}, int: {"integer", "long"}, bool: {"boolean"}, bytes: {"blob"}}


def test_every_action_of_the_model_is_in_the_table() -> None:
    assert MODULES
    assert set(ACTIONS) == set(MODEL.operation_names)


@pytest.mark.parametrize("name", sorted(MODEL.operation_names))
def test_requests_and_replies_are_those_of_the_model(name: str) -> None:
    operation, action = MODEL.operation_model(name), ACTIONS[name]
    compare(action.request, operation.input_shape)
    reply = without_none(get_type_hints(action.run)["return"])
    if operation.output_shape is None:
        assert reply is type(None)
    else:
        compare(reply, operation.output_shape)


def compare(kind: Any, shape: Any) -> None:
    kind = without_none(kind)
    if shape.type_name == "structure":
        names = dict(zip(kind.__struct_encode_fields__, kind.__struct_fields__, strict=True))
        assert set(names) == set(shape.members), kind
        hints = get_type_hints(kind, include_extras=True)
        for name, member in shape.members.items():
            compare(hints[names[name]], member)
    elif shape.type_name == "list":
        assert get_origin(kind) is list
        compare(get_args(kind)[0], shape.member)
    elif shape.type_name == "map":
        assert get_origin(kind) is dict
        compare(get_args(kind)[1], shape.value)
    else:
        assert shape.type_name in KINDS[kind], (kind, shape)


def without_none(kind: Any) -> Any:
    """A type without annotations and without None."""
    while True:
        if get_origin(kind) is Annotated:
            kind = get_args(kind)[0]
        elif type(None) in get_args(kind):
            (kind,) = (one for one in get_args(kind) if one is not type(None))
        else:
            return kind


@pytest.mark.parametrize("name", sorted(MODEL.operation_names))
def test_what_the_model_requires_is_required(name: str) -> None:
    shape = MODEL.operation_model(name).input_shape
    given = {field: EMPTY.get(shape.members[field].type_name, "x") for field in shape.required_members}
    for field in given.keys() - {"QueueUrl"}:  # the path may name the queue
        with pytest.raises(AwsError, match=f"The request must contain the parameter {field}."):
            JsonProtocol(json.dumps(given | {field: None}).replace(f'"{field}": null', '"x": 0').encode()).read(
                ACTIONS[name].request
            )


def test_every_system_attribute_and_queue_attribute_is_known() -> None:
    system = set(MODEL.shape_for("MessageSystemAttributeName").enum)
    assert {*SYSTEM_ATTRIBUTES, "All"} == system
    assert set(MODEL.shape_for("QueueAttributeName").enum) == NAMES
