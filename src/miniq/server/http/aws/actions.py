"""The tables of actions of SQS and SNS: for each one its request, the right that it needs and on which queue or topic,
and its function."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Literal, TypeVar

from msgspec import Struct

from miniq.broker import Broker
from miniq.broker.attempts import Attempts
from miniq.broker.keyring import VERBS
from miniq.dispatch import Caller
from miniq.message import QueueSettings, RedriveProgress
from miniq.options import Limits
from miniq.server.http.aws.addresses import Place
from miniq.server.http.aws.protocols import Service
from miniq.server.http.aws.shape import Shape

Subject = Literal["url", "name", "source", "topic", "subscription", "none"]
"""What names the queue or topic of a request: a URL, a name, the ARN of the source queue, of the topic, or of the
subscription; or the request names none."""
ANY_RIGHT = "any"
"""Stands for the right of callers that have some right on the queue."""
T = TypeVar("T")


class Task(Struct):
    """A move task that this broker started. Progress is that of the redrive, once another task has replaced it or it
    was cancelled, the last that was seen."""

    id: str
    source: str
    destination: str | None
    rate: int | None
    started: int
    to_move: int
    progress: RedriveProgress
    is_cancelled: bool = False


class Memory:
    """What SQS remembers of queues for a short time, and a restart forgets."""

    def __init__(self, broker: Broker) -> None:
        self.attempts = Attempts(broker)
        self.tasks: dict[str, list[Task]] = {}
        """The move tasks by source queue, latest first."""


class Call(Struct):
    """A request as its action gets it."""

    broker: Broker
    caller: Caller
    place: Place
    name: str
    """Of the queue or topic."""
    request: Any
    memory: Memory
    limits: Limits
    """Those of messages."""
    while_connected: Callable[[Coroutine[Any, Any, Any]], Coroutine[Any, Any, Any]]
    """Awaits a long poll, which ends when the caller disconnects."""
    shown: Callable[[str], str]
    """The text that the caller reads where a reply has this text."""
    trace: str | None = None
    """The trace header of the request."""
    subscription: str = ""

    @property
    def queue(self) -> str:
        """The queue that a request of SQS is about."""
        return self.name

    @property
    def topic(self) -> str:
        """The topic that a request of SNS is about."""
        return self.name

    async def settings(self) -> QueueSettings:
        """The settings of the queue, which must exist."""
        catalog = self.broker.catalog
        return catalog.find(self.queue) or await catalog.require(self.queue)

    def has_right(self, queue: str) -> bool:
        """Whether the caller has any right on a queue."""
        return self.broker.keys.open or any(self.caller.may(self.broker, verb, queue) for verb in VERBS)


Run = Callable[[Call], Coroutine[Any, Any, Shape | None]]


class Action(Struct, frozen=True):
    service: Service
    name: str
    request: type[Shape]
    right: str
    subject: Subject
    run: Run


ACTIONS: dict[Service, dict[str, Action]] = {"sqs": {}, "sns": {}}
"""All actions by service and name."""


def action(
    request: type[Shape], right: str, subject: Subject = "url", service: Service = "sqs"
) -> Callable[[Run], Run]:
    """Enter a function as the action whose request this is."""

    def enter(run: Run) -> Run:
        name = request.__name__.removesuffix("Request")
        ACTIONS[service][name] = Action(service, name, request, right, subject, run)
        return run

    return enter
