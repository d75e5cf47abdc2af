"""The operations of topics: rows of the table in `operations.py`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from miniq.api import operation as bodies
from miniq.api import replies, shapes
from miniq.api.operation import Call
from miniq.api.replies import same, single
from miniq.api.table import operation
from miniq.batch import Committed, Stage
from miniq.topic import ConfiguredTopic, Match, Published, Subscription, TopicInfo

TOPIC = "/v1/topics/{topic}"
STAGES = f"{TOPIC}/stages"
SUBSCRIPTION = f"{TOPIC}/subscriptions/{{name}}"


@operation(
    "publish", "POST", f"{TOPIC}/messages", "publish",
    "Copy one message or several to the queues of all matching subscriptions, all or none",
    same(Published), status=201, body=bodies.SEND, arrow=True, repeat="named",
)  # fmt: skip
class Publish(Call[Published], frozen=True):
    """`drafts` may be a `pyarrow.Table`."""

    topic: str
    drafts: Any


@operation(
    "list_topics", "GET", "/v1/topics", "read", "List topics with their subscriptions",
    single("TopicsReply", topics=list[TopicInfo]), own=True,
)  # fmt: skip
class ListTopics(Call[list[TopicInfo]], frozen=True):
    pass


@operation(
    "configure_topic", "PUT", TOPIC, "manage", "Create a topic, or change some of its settings",
    replies.TOPIC_CHANGED, body=bodies.CHANGES,
)  # fmt: skip
class ConfigureTopic(Call[ConfiguredTopic], frozen=True):
    topic: str
    changes: dict[str, Any]


@operation("get_topic", "GET", TOPIC, "read", "A topic with its subscriptions and rates", same(TopicInfo))
class GetTopic(Call[TopicInfo], frozen=True):
    topic: str


@operation(
    "delete_topic", "DELETE", TOPIC, "manage", "Remove a topic with its subscriptions; the queues stay",
    replies.NONE, status=204, done=["topic_not_found"],
)  # fmt: skip
class DeleteTopic(Call[None], frozen=True):
    topic: str


@operation(
    "match_topic", "POST", f"{TOPIC}/match", "read",
    "Which subscriptions a message with this key, these headers and this JSON body would match; nothing is sent",
    single("MatchReply", subscriptions=list[Match]),
)  # fmt: skip
class MatchTopic(Call[list[Match]], frozen=True):
    topic: str
    key: str | None = None
    headers: dict[str, str] | None = None
    body: dict[str, Any] | None = None


@operation(
    "subscribe", "PUT", SUBSCRIPTION, "manage", "Subscribe a queue to a topic, or replace a subscription",
    same(Subscription),
)  # fmt: skip
class Subscribe(Call[Subscription], frozen=True):
    """The queue is by default that of the subscription's name; the caller needs `send` on it. Messages match if their
    key matches `pattern` (words separated by dots, `*` is one word and `#` any number) and their headers, or with
    `filter_on` "body" their JSON body, match `filter` (Amazon SNS's filter policy grammar). With `envelope`, the body
    of a copy is the JSON notification of Amazon SNS, with these fields added. `sns` is kept and has no effect."""

    topic: str
    name: str
    queue: str | None = None
    pattern: str | None = None
    filter: dict[str, Any] | None = None
    filter_on: Literal["headers", "body"] = "headers"
    envelope: dict[str, str] | None = None
    sns: dict[str, str] | None = None


@operation(
    "unsubscribe", "DELETE", SUBSCRIPTION, "manage", "Remove a subscription; its queue stays",
    replies.NONE, status=204, done=["subscription_not_found", "topic_not_found"],
)  # fmt: skip
class Unsubscribe(Call[None], frozen=True):
    topic: str
    name: str


# Stages


@operation(
    "upload_to_topic", "POST", f"{STAGES}/{{job}}/{{batch}}/{{partition}}/{{attempt}}", "publish",
    "Store messages as part `part` of a stage, invisible until they are committed",
    replies.UPLOADED, status=201, body=bodies.UPLOAD, query=["part"], arrow=True,
)  # fmt: skip
class UploadToTopic(Call[tuple[int, int]], frozen=True):
    """The result is the number of messages and their bytes. `drafts` may be a `pyarrow.Table`."""

    topic: str
    job: str
    batch: str
    partition: str
    attempt: str
    part: int = 0
    drafts: Any = ()


@operation(
    "commit_to_topic", "POST", f"{STAGES}/{{job}}/{{batch}}/commit", "publish",
    "Publish the messages of some stages, once per job and batch", replies.COMMITTED,
)  # fmt: skip
class CommitToTopic(Call[Committed], frozen=True):
    topic: str
    job: str
    batch: str
    stages: Sequence[shapes.StageId]
    content: str | None = None


@operation(
    "discard_from_topic", "DELETE", f"{STAGES}/{{job}}/{{batch}}", "publish",
    "Remove the uncommitted stages of a batch", single("DiscardFromTopicReply", discarded=int),
)  # fmt: skip
class DiscardFromTopic(Call[int], frozen=True):
    topic: str
    job: str
    batch: str


@operation("list_topic_stages", "GET", STAGES, "read", "List uncommitted stages", replies.STAGES)
class ListTopicStages(Call[list[Stage]], frozen=True):
    topic: str
