"""The operations of API keys: rows of the table in `operations.py`."""

from __future__ import annotations

from collections.abc import Sequence

from miniq.api import replies, shapes
from miniq.api.operation import Call
from miniq.api.replies import same, single
from miniq.api.table import operation


@operation(
    "create_key", "POST", "/v1/keys", "admin", "Create an API key; its secret is shown once",
    same(shapes.ApiKey), status=201, repeat="once",
)  # fmt: skip
class CreateKey(Call[shapes.ApiKey], frozen=True):
    """A key to create: a display name, and its permissions, such as `send:orders.*`. With `public`, the public half of
    a CURVE key (40 characters), it is a key for ZeroMQ. It creates no queue while `max_queues` match its permissions,
    nor a topic. With `aws` it is a pair of access key id and secret, which signs requests of Amazon SQS.
    """

    name: str
    allow: Sequence[str]
    public: str | None = None
    max_queues: int | None = None
    aws: bool = False


@operation(
    "list_keys", "GET", "/v1/keys", "admin", "List API keys, without their secrets",
    single("KeysReply", keys=list[shapes.ApiKey]),
)  # fmt: skip
class ListKeys(Call[list[shapes.ApiKey]], frozen=True):
    pass


@operation(
    "revoke_key", "DELETE", "/v1/keys/{id}", "admin", "Revoke an API key",
    replies.NONE, status=204, done=["not_found"],
)  # fmt: skip
class RevokeKey(Call[None], frozen=True):
    id: str
