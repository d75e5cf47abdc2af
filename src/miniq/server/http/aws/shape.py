"""The base of requests and replies. `Xml` says what the elements of a list or map are called in the Query protocol,
which at SQS has no name for the list or map itself."""

from __future__ import annotations

from typing import Annotated

from msgspec import Struct


class Xml(Struct, frozen=True):
    """The name of an element, and of the key and value of an entry of a map."""

    element: str
    key: str = "Name"
    value: str = "Value"
    is_wrapped: bool = False
    """Whether the list or map itself is an element, which is there even if it is empty."""


class Shape(Struct, rename="pascal", omit_defaults=True):
    """A request, a reply, or a part of one. What is empty is left out."""


class AttributeValue(Shape):
    """The value of a message attribute; `string_value` or `binary_value` holds it, depending on its type."""

    data_type: str
    string_value: str | None = None
    binary_value: bytes | None = None
    string_list_values: Annotated[list[str] | None, Xml("StringListValue")] = None
    binary_list_values: Annotated[list[bytes] | None, Xml("BinaryListValue")] = None
