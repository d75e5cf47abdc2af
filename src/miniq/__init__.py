"""MiniQ, a message broker: `connect` to one, or keep one in a folder."""

from miniq.client.aio import AsyncClient, AsyncMessage, AsyncQueue
from miniq.client.bodies import draft
from miniq.client.delivery import Dead
from miniq.client.sync import Client, Message, Queue
from miniq.connection import connect, connect_async
from miniq.errors import (
    BadName,
    Closed,
    Conflict,
    InvalidRequest,
    MessageLeased,
    MessageNotFound,
    MiniQError,
    MissingExtra,
    NoSpace,
    NotFound,
    QueueFull,
    QueueNotFound,
    QueueProtected,
    StaleReceipt,
    StoreCorrupt,
    StoreError,
    StoreFailed,
    StoreFormat,
    StoreLocked,
    StoreUnavailable,
    TooLarge,
)
from miniq.message import (
    Counts,
    Draft,
    Event,
    HistoryPage,
    HistoryRecord,
    QueueInfo,
    QueueSettings,
    RedriveProgress,
)
from miniq.mini import MiniQ

__version__ = "0.1.0"

__all__ = [
    "AsyncClient",
    "AsyncMessage",
    "AsyncQueue",
    "BadName",
    "Client",
    "Closed",
    "Conflict",
    "Counts",
    "Dead",
    "Draft",
    "Event",
    "HistoryPage",
    "HistoryRecord",
    "InvalidRequest",
    "Message",
    "MessageLeased",
    "MessageNotFound",
    "MiniQ",
    "MiniQError",
    "MissingExtra",
    "NoSpace",
    "NotFound",
    "Queue",
    "QueueFull",
    "QueueInfo",
    "QueueNotFound",
    "QueueProtected",
    "QueueSettings",
    "RedriveProgress",
    "StaleReceipt",
    "StoreCorrupt",
    "StoreError",
    "StoreFailed",
    "StoreFormat",
    "StoreLocked",
    "StoreUnavailable",
    "TooLarge",
    "__version__",
    "connect",
    "connect_async",
    "draft",
]
