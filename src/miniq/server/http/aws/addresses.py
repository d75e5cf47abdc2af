"""How SQS and SNS name things: queues by URLs and ARNs, whose last part is the name of the queue, topics and
subscriptions by ARNs."""

from __future__ import annotations

import re

from msgspec import Struct

ACCOUNT = "000000000000"
"""The account that every queue belongs to. Requests may name any other."""
REGION = "us-east-1"
_TOPIC_ARN = re.compile(r"arn:[a-z-]+:sns:[a-z0-9-]*:\d{12}:([^:]+)(?::([^:]+))?")
_ARN = re.compile(r"arn:[a-z-]+:sqs:[a-z0-9-]*:\d{12}:(.+)")
_REGION = re.compile(r"[a-z0-9-]{1,32}")


class Place(Struct, frozen=True):
    """Where a caller sees the queues: the address that it connects to, and its region."""

    base: str
    region: str = REGION

    def url(self, queue: str) -> str:
        return f"{self.base}/{ACCOUNT}/{queue}"

    def arn(self, queue: str) -> str:
        return f"arn:aws:sqs:{self.region}:{ACCOUNT}:{queue}"

    def topic_arn(self, topic: str, subscription: str = "") -> str:
        """The ARN of a topic, or of one of its subscriptions."""
        arn = f"arn:aws:sns:{self.region}:{ACCOUNT}:{topic}"
        return f"{arn}:{subscription}" if subscription else arn


def queue_of_url(url: str) -> str:
    """The queue that a URL names; a bare name will do."""
    return url.rstrip("/").rpartition("/")[2]


def queue_of_arn(arn: str) -> str | None:
    """The queue that an ARN names; None if it is not the ARN of a queue."""
    match = _ARN.fullmatch(arn)
    return None if match is None else match[1]


def topic_of_arn(arn: str) -> tuple[str, str] | None:
    """The topic that an ARN names, and the subscription, empty if it names none; None if it is not such an ARN."""
    match = _TOPIC_ARN.fullmatch(arn)
    return None if match is None else (match[1], match[2] or "")


def region_of(name: str) -> str:
    """A region that a caller named, or the default."""
    return name if _REGION.fullmatch(name) else REGION
