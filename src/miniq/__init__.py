"""MiniQ, a message broker: `connect` to a server, or open a folder as an embedded broker."""

from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from miniq.api.shapes import ApiKey, Identity, QueueStats, QueueTrend, Rates, Stats, Trends
from miniq.batch import Claim, ClaimGroup, Committed, OpenedGroup, Stage, StageName
from miniq.client._async.claims import AsyncClaims
from miniq.client._async.client import AsyncClient
from miniq.client._async.message import AsyncMessage
from miniq.client._async.queue import AsyncQueue
from miniq.client._async.stages import AsyncStaging
from miniq.client._async.topic import AsyncTopic
from miniq.client._sync.claims import Claims
from miniq.client._sync.client import Client
from miniq.client._sync.message import Message
from miniq.client._sync.queue import Queue
from miniq.client._sync.stages import Staging
from miniq.client._sync.topic import Topic
from miniq.client.bodies import draft
from miniq.client.connection import connect, connect_async
from miniq.client.delivery import Dead, Result
from miniq.client.failure import Reject, ResultTimeout, TaskFailed
from miniq.client.mini import MiniQ
from miniq.consumer import Consumer
from miniq.errors import (
    BadName,
    BadRequest,
    BatchMismatch,
    ClaimGone,
    ClaimTaken,
    ClaimUnknown,
    ClaimUnread,
    Closed,
    Conflict,
    CrossOrigin,
    Denied,
    Fenced,
    Forbidden,
    HeadTooLarge,
    IdempotencyMismatch,
    InvalidRequest,
    MessageLeased,
    MessageNotFound,
    MiniQError,
    MissingExtra,
    NoRoute,
    NoSpace,
    NotFound,
    Overloaded,
    QueueFull,
    QueueNotFound,
    QueueProtected,
    ResultsOff,
    ScheduleNotFound,
    StageUnknown,
    StaleReceipt,
    StoreCorrupt,
    StoreError,
    StoreFailed,
    StoreFormat,
    StoreLocked,
    StoreUnavailable,
    SubscriptionNotFound,
    TooLarge,
    TooManyQueues,
    TooManySchedules,
    TooManyStreams,
    TooManySubscriptions,
    TooManyTopics,
    TopicNotFound,
    Unauthorized,
    UrlTooLong,
    WrongMedia,
    WrongMethod,
)
from miniq.message import (
    ConfiguredQueue,
    Counts,
    Draft,
    Event,
    Failed,
    HistoryPage,
    HistoryRecord,
    QueueChanges,
    QueueInfo,
    QueueSettings,
    RedriveProgress,
    Retry,
)
from miniq.schedule import Firing, Schedule
from miniq.topic import ConfiguredTopic, Match, Published, Subscription, TopicInfo, TopicRates, TopicSettings

if _TYPE_CHECKING:
    from miniq.worker.app import App as App
    from miniq.worker.jobs import Attempt as Attempt
    from miniq.worker.jobs import current_message as current_message
    from miniq.worker.tasks import Job as Job
    from miniq.worker.tasks import Task as Task

__version__ = "0.2.0"

_LAZY = {
    "App": "app",
    "Attempt": "jobs",
    "Job": "tasks",
    "Task": "tasks",
    "current_message": "jobs",
}
"""Names that are imported on first use, and their modules of `miniq.worker`: clients need not load them."""


def __getattr__(name: str) -> _Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(f"miniq.worker.{_LAZY[name]}"), name)
    return value


__all__ = [
    "ApiKey",
    "App",
    "AsyncClaims",
    "AsyncClient",
    "AsyncMessage",
    "AsyncQueue",
    "AsyncStaging",
    "AsyncTopic",
    "Attempt",
    "BadName",
    "BadRequest",
    "BatchMismatch",
    "Claim",
    "ClaimGone",
    "ClaimGroup",
    "ClaimTaken",
    "ClaimUnknown",
    "ClaimUnread",
    "Claims",
    "Client",
    "Closed",
    "Committed",
    "ConfiguredQueue",
    "ConfiguredTopic",
    "Conflict",
    "Consumer",
    "Counts",
    "CrossOrigin",
    "Dead",
    "Denied",
    "Draft",
    "Event",
    "Failed",
    "Fenced",
    "Firing",
    "Forbidden",
    "HeadTooLarge",
    "HistoryPage",
    "HistoryRecord",
    "IdempotencyMismatch",
    "Identity",
    "InvalidRequest",
    "Job",
    "Match",
    "Message",
    "MessageLeased",
    "MessageNotFound",
    "MiniQ",
    "MiniQError",
    "MissingExtra",
    "NoRoute",
    "NoSpace",
    "NotFound",
    "OpenedGroup",
    "Overloaded",
    "Published",
    "Queue",
    "QueueChanges",
    "QueueFull",
    "QueueInfo",
    "QueueNotFound",
    "QueueProtected",
    "QueueSettings",
    "QueueStats",
    "QueueTrend",
    "Rates",
    "RedriveProgress",
    "Reject",
    "Result",
    "ResultTimeout",
    "ResultsOff",
    "Retry",
    "Schedule",
    "ScheduleNotFound",
    "Stage",
    "StageName",
    "StageUnknown",
    "Staging",
    "StaleReceipt",
    "Stats",
    "StoreCorrupt",
    "StoreError",
    "StoreFailed",
    "StoreFormat",
    "StoreLocked",
    "StoreUnavailable",
    "Subscription",
    "SubscriptionNotFound",
    "Task",
    "TaskFailed",
    "TooLarge",
    "TooManyQueues",
    "TooManySchedules",
    "TooManyStreams",
    "TooManySubscriptions",
    "TooManyTopics",
    "Topic",
    "TopicInfo",
    "TopicNotFound",
    "TopicRates",
    "TopicSettings",
    "Trends",
    "Unauthorized",
    "UrlTooLong",
    "WrongMedia",
    "WrongMethod",
    "__version__",
    "connect",
    "connect_async",
    "current_message",
    "draft",
]
