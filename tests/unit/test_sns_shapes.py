"""Every request and reply of SNS against the model that AWS publishes for its SDKs."""

from __future__ import annotations

from typing import Any, get_type_hints

import pytest
from botocore.serialize import create_serializer

from miniq.server.http.aws.actions import ACTIONS
from miniq.server.http.aws.errors import AwsError, Kind
from miniq.server.http.aws.protocols import QueryProtocol
from miniq.server.http.aws.sns import errors
from miniq.server.http.aws.wire import MODULES
from tests.sqs import SESSIONS
from tests.unit.test_sqs_shapes import compare, without_none

MODEL: Any = SESSIONS["json"].get_service_model("sns")
SNS = ACTIONS["sns"]
NOT_SUPPORTED = {
    "CheckIfPhoneNumberIsOptedOut", "CreatePlatformApplication", "CreatePlatformEndpoint",
    "CreateSMSSandboxPhoneNumber", "DeleteEndpoint", "DeletePlatformApplication", "DeleteSMSSandboxPhoneNumber",
    "GetDataProtectionPolicy", "GetEndpointAttributes", "GetPlatformApplicationAttributes", "GetSMSAttributes",
    "GetSMSSandboxAccountStatus", "ListEndpointsByPlatformApplication", "ListOriginationNumbers",
    "ListPhoneNumbersOptedOut", "ListPlatformApplications", "ListSMSSandboxPhoneNumbers", "OptInPhoneNumber",
    "PutDataProtectionPolicy", "SetEndpointAttributes", "SetPlatformApplicationAttributes", "SetSMSAttributes",
    "VerifySMSSandboxPhoneNumber",
}  # fmt: skip
"""Phones, mobile devices and data protection."""


def test_every_action_of_the_model_is_in_the_table_or_known_not_to_be() -> None:
    assert MODULES
    assert set(SNS) == set(MODEL.operation_names) - NOT_SUPPORTED


@pytest.mark.parametrize("name", sorted(SNS))
def test_requests_and_replies_are_those_of_the_model(name: str) -> None:
    operation, action = MODEL.operation_model(name), SNS[name]
    compare(action.request, operation.input_shape)
    reply = without_none(get_type_hints(action.run)["return"])
    if operation.output_shape is None:
        assert reply is type(None)
    else:
        compare(reply, operation.output_shape)


def sample(shape: Any) -> Any:
    """A value for every part of a shape."""
    if shape.type_name == "structure":
        return {name: sample(member) for name, member in shape.members.items()}
    if shape.type_name == "list":
        return [sample(shape.member), sample(shape.member)]
    if shape.type_name == "map":
        return {"a": sample(shape.value), "b": sample(shape.value)}
    return {"string": "text", "boolean": True, "blob": b"bytes", "integer": 7}[shape.type_name]


@pytest.mark.parametrize("name", sorted(SNS))
def test_a_form_of_the_sdk_is_read_whole_and_what_is_required_is_required(name: str) -> None:
    operation = MODEL.operation_model(name)
    given = sample(operation.input_shape)
    serializer = create_serializer("query", include_validation=False)
    form = {key: str(value) for key, value in serializer.serialize_to_request(given, operation)["body"].items()}
    protocol = QueryProtocol(b"", b"", "sns")
    protocol.fields = form
    request = protocol.read(SNS[name].request)
    again = serializer.serialize_to_request(written(request, operation.input_shape), operation)["body"]
    assert {key: str(value) for key, value in again.items()} == form
    for field in operation.input_shape.required_members:
        protocol.fields = {key: text for key, text in form.items() if key.partition(".")[0] != field}
        with pytest.raises(AwsError, match=f"The request must contain the parameter {field}."):
            protocol.read(SNS[name].request)


def written(value: Any, shape: Any) -> Any:
    """A request as the SDK would take it."""
    if shape.type_name == "structure":
        names = dict(zip(type(value).__struct_encode_fields__, type(value).__struct_fields__, strict=True))
        return {name: written(getattr(value, names[name]), member) for name, member in shape.members.items()}
    if shape.type_name == "list":
        return [written(item, shape.member) for item in value]
    if shape.type_name == "map":
        return {key: written(item, shape.value) for key, item in value.items()}
    return value


def test_every_error_has_the_code_and_status_of_the_model() -> None:
    known = {
        shape.metadata["error"]["code"]: shape.metadata["error"]["httpStatusCode"]
        for shape in map(MODEL.shape_for, MODEL.shape_names)
        if shape.type_name == "structure" and shape.metadata.get("error")
    }
    kinds = [value for value in vars(errors).values() if isinstance(value, Kind) and value is not errors.VALIDATION]
    assert len(kinds) > 10
    for kind in kinds:
        assert known[kind.code] == kind.status
