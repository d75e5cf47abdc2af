"""Every operation of the API, described once for both ends: its request as a record, under its row of the table.

The server derives HTTP routes, ZeroMQ commands and the OpenAPI document from the table; the clients derive their
requests, how replies are read, and what is retried. `dispatch.py` maps a call to a method of the broker. A new
operation is a record with its row here, a shape of its reply if there is none yet, a method of the broker, and a method
of the async client.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from msgspec import UNSET, Raw, UnsetType

from miniq.api import operation as bodies
from miniq.api import replies, shapes, tables
from miniq.api.operation import Call, Operation
from miniq.api.replies import same, single
from miniq.api.table import OPERATIONS as OPERATIONS
from miniq.api.table import operation
from miniq.batch import Claim, ClaimGroup, Committed, OpenedGroup, Stage
from miniq.errors import InvalidRequest
from miniq.message import (
    ConfiguredQueue,
    Extended,
    Failed,
    HistoryPage,
    Lease,
    Leased,
    Mode,
    Outcome,
    Page,
    QueueInfo,
    RedriveProgress,
    Status,
    Stored,
)
from miniq.result import Progress, Unknown

QUEUE = "/v1/queues/{queue}"
CLAIMS = f"{QUEUE}/claims"
STAGES = f"{QUEUE}/stages"
SCHEDULE = "/v1/schedules/{name}"
# Messages


@operation(
    "send", "POST", f"{QUEUE}/messages", "send", "Send one message or several, all or none",
    replies.IDS, status=201, hot=True, body=bodies.SEND, arrow=True, repeat="named",
)  # fmt: skip
class Send(Call[list[str]], frozen=True):
    """`drafts` may be a `pyarrow.Table`."""

    queue: str
    drafts: Any


@operation(
    "receive", "POST", f"{QUEUE}/receive", "receive", "Lease messages; with `wait`, wait for the first",
    replies.RECEIVED, hot=True, long_poll=True,
)  # fmt: skip
class Receive(Call[Leased], frozen=True):
    queue: str
    max: int = 1
    wait: float = 0
    visibility_timeout: float | None = None
    consumer: str | None = None
    mode: Mode = "at-least-once"


@operation(
    "ack", "POST", f"{QUEUE}/ack", "receive", "Remove messages that were processed",
    replies.outcomes("acked"), hot=True, body=bodies.ACK, done=["missing"],
)  # fmt: skip
class Ack(Call[list[Outcome]], frozen=True):
    queue: str
    leases: Sequence[Lease]


@operation(
    "result", "GET", f"{QUEUE}/results/{{id}}", "send", "What became of a message; with `wait`, once it is finished",
    replies.PROGRESS, long_poll=True, alternative="read",
)  # fmt: skip
class Result(Call[Progress], frozen=True):
    """A queue keeps results for as many seconds as its setting `results` says."""

    queue: str
    id: str
    wait: float = 0
    unknown: Unknown = "return"


@operation(
    "put_result", "PUT", f"{QUEUE}/results/{{id}}", "receive", "Keep a result under an id of your own",
    replies.KEPT, body=bodies.RESULT,
)  # fmt: skip
class PutResult(Call[bool], frozen=True):
    """`id` is a UUID. The result is kept for `ttl` seconds, by default as the queue's `results` says; 0 forgets it. One
    that is not `final` ends no wait. With `replaces`, the `finished_at` of a result, it is kept only instead of that;
    with `new`, only if none is kept."""

    queue: str
    id: str
    result: Raw | UnsetType = UNSET
    final: bool = True
    ttl: float | None = None
    replaces: datetime | None = None
    new: bool = False


class AckById(Call[bool], frozen=True):
    """Ack without a receipt: only for the embedded `MiniQ`, not available over HTTP or ZeroMQ."""

    queue: str
    id: str


@operation(
    "release", "POST", f"{QUEUE}/release", "receive", "Return messages to the queue, now or after `delay`",
    replies.outcomes("released"), hot=True, done=["stale", "missing"],
)  # fmt: skip
class Release(Call[list[Outcome]], frozen=True):
    """With `unused`, the receive of each does not count: its consumer did nothing with it."""

    queue: str
    leases: Sequence[Lease]
    delay: float = 0
    unused: bool = False


@operation(
    "fail", "POST", f"{QUEUE}/fail", "receive", "Report that messages could not be processed, and why",
    replies.FAILED, hot=True, done=["stale", "missing"],
)  # fmt: skip
class Fail(Call[list[Failed]], frozen=True):
    """`error` (up to 4 KiB) stays with the message. It waits for `delay` seconds, by default as the queue's `retry`
    says; with `dead` it is not tried again."""

    queue: str
    leases: Sequence[Lease]
    error: str
    delay: float | None = None
    dead: bool = False


@operation(
    "extend", "POST", f"{QUEUE}/extend", "receive", "Extend leases to end `visibility_timeout` from now",
    replies.EXTENDED, hot=True,
)  # fmt: skip
class Extend(Call[Extended], frozen=True):
    """`visibility_timeout` defaults to the queue's."""

    queue: str
    leases: Sequence[Lease]
    visibility_timeout: float | None = None


@operation(
    "peek", "GET", f"{QUEUE}/messages", "read", "Browse messages without consuming",
    replies.PAGE, table=tables.read_messages_page,
)  # fmt: skip
class Peek(Call[Page], frozen=True):
    queue: str
    status: Status | None = None
    after: str | None = None
    limit: int = 100
    find: str | None = None


@operation("get", "GET", f"{QUEUE}/messages/{{id}}", "read", "Get a message without a lease", replies.MESSAGE)
class Get(Call[Stored], frozen=True):
    queue: str
    id: str


@operation(
    "release_one", "POST", f"{QUEUE}/messages/{{id}}/release", "manage",
    "Release a message that any consumer holds", replies.RELEASED_ONE,
)  # fmt: skip
class ReleaseOne(Call[bool], frozen=True):
    queue: str
    id: str
    delay: float = 0


@operation(
    "edit", "PATCH", f"{QUEUE}/messages/{{id}}", "manage",
    "Change a message that is not leased, or with its receipt",
    replies.MESSAGE, body=bodies.EDIT, unread=replies.without_content,
)  # fmt: skip
class Edit(Call[Stored], frozen=True):
    """Fields that are None stay as they are."""

    queue: str
    id: str
    body: bytes | None = None
    content_type: str | None = None
    headers: dict[str, str] | None = None
    priority: int | None = None
    delay: float | None = None
    receipt: str | None = None


@operation(
    "remove", "DELETE", f"{QUEUE}/messages/{{id}}", "manage",
    "Remove a message that is not leased, or with its receipt",
    replies.NONE, status=204, done=["message_not_found"],
)  # fmt: skip
class Remove(Call[None], frozen=True):
    queue: str
    id: str
    receipt: str | None = None


# Claims


@operation(
    "open_claims", "POST", f"{CLAIMS}/{{group}}/open", "receive",
    "Start reading the claims of a group; earlier readers are fenced", replies.CLAIMS_OPENED,
)  # fmt: skip
class OpenClaims(Call[OpenedGroup], frozen=True):
    queue: str
    group: str


@operation(
    "claim", "POST", CLAIMS, "receive", "Ack claims up to `after`, return the next one; safe to repeat",
    replies.CLAIM, long_poll=True,
)  # fmt: skip
class NextClaim(Call[tuple[Claim | None, int]], frozen=True):
    """Ack all claims of a group up to `after`, and return the next one, with the group's epoch."""

    queue: str
    group: str
    after: int
    epoch: int | None = None
    max_messages: int = 10_000
    max_bytes: int = 64 * 1024 * 1024
    wait: float = 0
    consumer: str | None = None
    reader: str | None = None


@operation(
    "read_claim", "GET", f"{CLAIMS}/{{group}}/{{claim}}", "receive",
    "The messages of a claim, or part `part` of `parts`; always the same",
    replies.CLAIMED, table=tables.read_table,
)  # fmt: skip
class ReadClaim(Call[list[Stored]], frozen=True):
    queue: str
    group: str
    claim: int
    part: int = 0
    parts: int = 1
    reader: str | None = None


@operation(
    "ack_claims", "DELETE", f"{CLAIMS}/{{group}}", "receive", "Ack all claims up to `upto`",
    replies.CLAIMS_ACKED,
)  # fmt: skip
class AckClaims(Call[None], frozen=True):
    queue: str
    group: str
    upto: int
    epoch: int | None = None
    reader: str | None = None


@operation(
    "release_claims", "POST", f"{CLAIMS}/{{group}}/release", "receive",
    "Return the messages of unacked claims to the queue", single("ClaimsReleasedReply", released=int),
)  # fmt: skip
class ReleaseClaims(Call[int], frozen=True):
    queue: str
    group: str
    epoch: int | None = None


@operation(
    "bury_claimed", "POST", f"{CLAIMS}/{{group}}/{{claim}}/dead", "receive",
    "Copy messages of a held claim to the dead-letter queue, each once; safe to repeat",
    single("ClaimsBuriedReply", buried=int),
)  # fmt: skip
class BuryClaimed(Call[int], frozen=True):
    queue: str
    group: str
    claim: int
    ids: Sequence[str]
    reason: str
    errors: Sequence[str] | None = None


@operation("list_claims", "GET", CLAIMS, "read", "List groups with their claims", replies.CLAIM_GROUPS)
class ListClaims(Call[list[ClaimGroup]], frozen=True):
    queue: str


# Stages


@operation(
    "upload", "POST", f"{STAGES}/{{job}}/{{batch}}/{{partition}}/{{attempt}}", "send",
    "Store messages as part `part` of a stage, invisible until they are committed",
    replies.UPLOADED, status=201, body=bodies.UPLOAD, query=["part"], arrow=True,
)  # fmt: skip
class Upload(Call[tuple[int, int]], frozen=True):
    """The result is the number of messages and their bytes. `drafts` may be a `pyarrow.Table`."""

    queue: str
    job: str
    batch: str
    partition: str
    attempt: str
    part: int = 0
    drafts: Any = ()


@operation(
    "commit_stages", "POST", f"{STAGES}/{{job}}/{{batch}}/commit", "send",
    "Add the messages of some stages to the queue, once per job and batch", replies.COMMITTED,
)  # fmt: skip
class CommitStages(Call[Committed], frozen=True):
    queue: str
    job: str
    batch: str
    stages: Sequence[shapes.StageId]
    content: str | None = None


@operation(
    "discard_stages", "DELETE", f"{STAGES}/{{job}}/{{batch}}", "send",
    "Remove the uncommitted stages of a batch", single("DiscardReply", discarded=int),
)  # fmt: skip
class DiscardStages(Call[int], frozen=True):
    queue: str
    job: str
    batch: str


@operation("list_stages", "GET", STAGES, "read", "List uncommitted stages", replies.STAGES)
class ListStages(Call[list[Stage]], frozen=True):
    queue: str


# Queues


@operation(
    "list_queues", "GET", "/v1/queues", "read", "List queues with counts", replies.QUEUES, own=True
)  # fmt: skip
class ListQueues(Call[list[QueueInfo]], frozen=True):
    pass


@operation(
    "configure", "PUT", QUEUE, "manage", "Create a queue, or change some of its settings",
    replies.QUEUE_CHANGED, body=bodies.CHANGES, sends_to="changes.dead_letter_queue",
    unread=replies.without_counts,
)  # fmt: skip
class Configure(Call[ConfiguredQueue], frozen=True):
    queue: str
    changes: dict[str, Any]


@operation("get_queue", "GET", QUEUE, "read", "Settings and counts of a queue", replies.QUEUE)
class GetQueue(Call[QueueInfo], frozen=True):
    queue: str


@operation(
    "delete_queue", "DELETE", QUEUE, "manage", "Remove a queue with its messages",
    replies.NONE, status=204, done=["queue_not_found"],
)  # fmt: skip
class DeleteQueue(Call[None], frozen=True):
    queue: str


@operation(
    "purge", "POST", f"{QUEUE}/purge", "manage", "Remove all messages of a queue",
    single("PurgeReply", purged=int),
)  # fmt: skip
class Purge(Call[int], frozen=True):
    queue: str


@operation(
    "redrive", "POST", f"{QUEUE}/redrive", "manage", "Move dead letters back to the queues they came from",
    same(RedriveProgress), sends_to="to",
)  # fmt: skip
class Redrive(Call[RedriveProgress], frozen=True):
    queue: str
    ids: Sequence[str] | None = None
    to: str | None = None
    rate: float | None = None


# The broker as a whole


@operation(
    "history", "GET", "/v1/history", "read", "Events of messages, by rising offset",
    replies.HISTORY, table=tables.read_history_page, own=True,
)  # fmt: skip
class History(Call[HistoryPage], frozen=True):
    after: int = 0
    limit: int = 100
    queue: str | None = None
    id: str | None = None
    event: str | None = None
    consumer: str | None = None
    since: datetime | None = None
    before: int = 0


@operation(
    "whoami", "GET", "/v1/whoami", "read", "The identity and permissions of the caller",
    same(shapes.Identity), own=True,
)  # fmt: skip
class WhoAmI(Call[shapes.Identity], frozen=True):
    queue: str | None = None


@operation(
    "backup", "POST", "/v1/backup", "admin", "Write a backup to a folder on the server",
    replies.NONE, status=204, repeat="once",
)  # fmt: skip
class Backup(Call[None], frozen=True):
    """`path` is a new folder on the server."""

    path: str


# The rows of topics follow.
from miniq.api.key_operations import CreateKey as CreateKey  # noqa: E402
from miniq.api.key_operations import ListKeys as ListKeys  # noqa: E402
from miniq.api.key_operations import RevokeKey as RevokeKey  # noqa: E402
from miniq.api.schedule_operations import DeleteSchedule as DeleteSchedule  # noqa: E402
from miniq.api.schedule_operations import GetSchedule as GetSchedule  # noqa: E402
from miniq.api.schedule_operations import ListSchedules as ListSchedules  # noqa: E402
from miniq.api.schedule_operations import PutSchedule as PutSchedule  # noqa: E402
from miniq.api.schedule_operations import RunSchedule as RunSchedule  # noqa: E402
from miniq.api.topic_operations import CommitToTopic as CommitToTopic  # noqa: E402
from miniq.api.topic_operations import ConfigureTopic as ConfigureTopic  # noqa: E402
from miniq.api.topic_operations import DeleteTopic as DeleteTopic  # noqa: E402
from miniq.api.topic_operations import DiscardFromTopic as DiscardFromTopic  # noqa: E402
from miniq.api.topic_operations import GetTopic as GetTopic  # noqa: E402
from miniq.api.topic_operations import ListTopics as ListTopics  # noqa: E402
from miniq.api.topic_operations import ListTopicStages as ListTopicStages  # noqa: E402
from miniq.api.topic_operations import MatchTopic as MatchTopic  # noqa: E402
from miniq.api.topic_operations import Publish as Publish  # noqa: E402
from miniq.api.topic_operations import Subscribe as Subscribe  # noqa: E402
from miniq.api.topic_operations import Unsubscribe as Unsubscribe  # noqa: E402
from miniq.api.topic_operations import UploadToTopic as UploadToTopic  # noqa: E402
from miniq.api.watch_operations import ListAllClaims as ListAllClaims  # noqa: E402
from miniq.api.watch_operations import ListConsumers as ListConsumers  # noqa: E402
from miniq.api.watch_operations import ListFailures as ListFailures  # noqa: E402
from miniq.api.watch_operations import Stats as Stats  # noqa: E402
from miniq.api.watch_operations import Trends as Trends  # noqa: E402

BY_NAME = {operation.name: operation for operation in OPERATIONS}
BY_REQUEST = {operation.request: operation for operation in OPERATIONS}


def operation_of(call: Call[Any]) -> Operation[Any]:
    """The operation of a call."""
    operation = BY_REQUEST.get(type(call))
    if operation is not None:
        return operation
    if isinstance(call, AckById):
        raise InvalidRequest("id: a message is acked with its receipt; receive it first", field="id")
    raise InvalidRequest(f"call: {call!r:.80} is not a call; use a record of miniq.api.operations", field="call")
