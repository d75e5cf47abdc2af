# Generated from ../_async/topic.py by `make generate`: change that file.
"""One topic of a broker: what is published to it is copied into every queue whose subscription matches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, Unpack

from miniq.api import operations as ops
from miniq.api.tables import to_table
from miniq.batch import Committed, Stage, StageName
from miniq.client import bodies
from miniq.client._sync.stages import Staging, stage_ids
from miniq.client._sync.transport import Transport
from miniq.client.arguments import as_filter
from miniq.client.one_process import OneProcess
from miniq.errors import BadName
from miniq.message import DraftOptions
from miniq.topic import ConfiguredTopic, Match, Published, Subscription, TopicChanges, TopicInfo


class Topic(OneProcess):
    """One topic of a broker, by name; it need not exist yet."""

    __slots__ = ("_perform", "name")

    def __init__(self, transport: Transport, name: str) -> None:
        if not isinstance(name, str):
            raise BadName(f"topic: {name!r} is not a topic name; use 1 to 128 of A-Z a-z 0-9 . _ -", field="topic")
        self.name = name
        self._perform = transport.perform

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    def publish(self, body: Any, **options: Unpack[DraftOptions]) -> str:
        """Publish one message, and return its id once it is stored in all matching queues; `body` and `options` are as
        with `Queue.send`."""
        published = self._perform(ops.Publish(self.name, [bodies.draft(body, **options)]))
        return published.ids[0]

    def publish_many(self, messages: Iterable[Any]) -> Published:
        """Publish bodies or drafts (`miniq.draft`), all or none: their ids, and how many queues got some of them."""
        drafts = bodies.drafts(messages)
        return self._perform(ops.Publish(self.name, drafts)) if drafts else Published([], 0)

    def publish_table(self, table: Any) -> Published:
        """Publish the rows of a `pyarrow.Table`, all or none; its columns are as with `Queue.send_table`."""
        return self._perform(ops.Publish(self.name, to_table(table)))

    def subscribe(
        self,
        name: str,
        queue: str | None = None,
        *,
        pattern: str | None = None,
        filter: Mapping[str, Any] | None = None,
        filter_on: Literal["headers", "body"] = "headers",
        envelope: Mapping[str, str] | None = None,
    ) -> Subscription:
        """Subscribe a queue, by default the one with the subscription's name, or replace the subscription. Messages
        match whose key matches `pattern` and whose headers, or with `filter_on="body"` JSON body, match `filter`.
        With `envelope`, the body of a copy is the JSON notification of Amazon SNS, with these fields added."""
        given: Any = as_filter(filter) if isinstance(filter, Mapping) else filter
        added: Any = dict(envelope) if isinstance(envelope, Mapping) else envelope
        return self._perform(ops.Subscribe(self.name, name, queue, pattern, given, filter_on, added))

    def unsubscribe(self, name: str) -> None:
        """Remove a subscription. Its queue stays, with all that is in it."""
        self._perform(ops.Unsubscribe(self.name, name))

    def match(
        self,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        body: dict[str, Any] | None = None,
    ) -> list[Match]:
        """Which subscriptions a message would match; nothing is sent."""
        if body is not None:
            bodies.check_json(body, "body")
        return self._perform(ops.MatchTopic(self.name, key, None if headers is None else dict(headers), body))

    def info(self) -> TopicInfo:
        """Settings, subscriptions and rates."""
        return self._perform(ops.GetTopic(self.name))

    def configure(self, **changes: Unpack[TopicChanges]) -> ConfiguredTopic:
        """Create the topic, or change some of its settings."""
        return self._perform(ops.ConfigureTopic(self.name, dict(changes)))

    def delete(self) -> None:
        """Delete the topic with its subscriptions. The queues stay."""
        self._perform(ops.DeleteTopic(self.name))

    # Stages

    def stage(self, job: str, batch: int | str, partition: int | str, attempt: int | str) -> Staging:
        """A stage for the messages of one attempt of one task of a job, invisible until they are committed; makes no
        call yet."""
        return Staging(self, StageName(job, str(batch), str(partition), str(attempt)))

    def _upload(self, name: StageName, part: int, drafts: Any) -> tuple[int, int]:
        call = ops.UploadToTopic(self.name, name.job, name.batch, name.partition, name.attempt, part, drafts)
        return self._perform(call)

    def commit_stages(
        self, job: str, batch: int | str, stages: Iterable[tuple[int | str, int | str]], content: str | None = None
    ) -> Committed:
        """Publish the messages of some stages, (partition, attempt), all at once, and once per job and batch: a
        repeated commit adds nothing. Other stages of the batch are removed. `content` names what they hold: a
        repetition with another one raises `BatchMismatch`."""
        return self._perform(ops.CommitToTopic(self.name, job, str(batch), stage_ids(stages), content))

    def discard_stages(self, job: str, batch: int | str) -> int:
        """Remove the uncommitted stages of a batch, and return their number."""
        return self._perform(ops.DiscardFromTopic(self.name, job, str(batch)))

    def stages(self) -> list[Stage]:
        """All uncommitted stages."""
        return self._perform(ops.ListTopicStages(self.name))
