"""The attributes of a queue: which are settings of the broker, which are kept for SQS alone, and what is valid.

Those that MiniQ has no setting for are in the setting `sqs` of the queue, under their own names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from miniq.message import Counts, QueueSettings
from miniq.server.http.aws.addresses import Place, queue_of_arn
from miniq.server.http.aws.errors import (
    INVALID_ATTRIBUTE_NAME,
    INVALID_ATTRIBUTE_VALUE,
    INVALID_PARAMETER,
    AwsError,
    bad_value,
)
from miniq.server.http.aws.json_text import read_json
from miniq.server.http.aws.message_attributes import INVALID_CHARACTERS

FIFO = ".fifo"
RETENTION = 345_600
MAX_SIZE = 1_048_576
SOURCES = 10
"""Maximum number of source queues in a `RedriveAllowPolicy`."""
NUMBERS = {
    "VisibilityTimeout": (0, 43_200, "visibility_timeout"),
    "DelaySeconds": (0, 900, "delay"),
    "MessageRetentionPeriod": (60, 1_209_600, "retention"),
    "ReceiveMessageWaitTimeSeconds": (0, 20, None),
    "MaximumMessageSize": (1024, MAX_SIZE, None),
    "KmsDataKeyReusePeriodSeconds": (60, 86_400, None),
}
"""Attributes that are numbers: the range, and the setting of the broker that each one is."""
CHOICES = {
    "SqsManagedSseEnabled": ("true", "false"),
    "ContentBasedDeduplication": ("true", "false"),
    "DeduplicationScope": ("queue", "messageGroup"),
    "FifoThroughputLimit": ("perQueue", "perMessageGroupId"),
}
TEXTS = ("Policy", "RedriveAllowPolicy", "KmsMasterKeyId")
"""Kept as they are; an empty one is removed."""
FIFO_ONLY = ("FifoQueue", "ContentBasedDeduplication", "DeduplicationScope", "FifoThroughputLimit")
READ_ONLY = (
    "QueueArn",
    "ApproximateNumberOfMessages",
    "ApproximateNumberOfMessagesNotVisible",
    "ApproximateNumberOfMessagesDelayed",
    "CreatedTimestamp",
    "LastModifiedTimestamp",
)
NAMES = {*NUMBERS, *CHOICES, *TEXTS, *FIFO_ONLY, *READ_ONLY, "RedrivePolicy", "All"}
_DEFAULTS = {"ReceiveMessageWaitTimeSeconds": "0", "MaximumMessageSize": str(MAX_SIZE)}
_FIFO_DEFAULTS = {
    "ContentBasedDeduplication": "false",
    "DeduplicationScope": "queue",
    "FifoThroughputLimit": "perQueue",
}
_NO_ALLOW_POLICY = "Amazon SQS can't create the redrive allow policy"
_ONE_SSE = "You can use one type of server-side encryption (SSE) at one time. You can either enable KMS SSE or SQS SSE."

_NAME = re.compile(r"[A-Za-z0-9_-]+")

Exists = Callable[[str], bool]


def is_fifo(queue: str) -> bool:
    return queue.endswith(FIFO)


def max_size(settings: QueueSettings) -> int:
    """The largest message that a queue accepts."""
    return _kept_number(settings, "MaximumMessageSize", MAX_SIZE)


def wait(settings: QueueSettings) -> int:
    """How long a receive waits that does not say how long."""
    return _kept_number(settings, "ReceiveMessageWaitTimeSeconds", 0)


def _kept_number(settings: QueueSettings, name: str, default: int) -> int:
    """A number of the setting `sqs`, in which other programs may have written anything."""
    text = settings.sqs.get(name, "")
    low, high, _ = NUMBERS[name]
    return int(text) if text.isascii() and text.isdigit() and low <= int(text[:20]) <= high else default


def dead_letter_queue(queue: str, settings: QueueSettings) -> str | None:
    """Where the messages of a queue go that were received too often."""
    if settings.max_receives is None:
        return None
    return settings.dead_letter_queue or f"{queue}.dead"


def describe(queue: str, settings: QueueSettings, counts: Counts, place: Place) -> dict[str, str]:
    """All attributes of a queue."""
    kept = settings.sqs
    attributes = {
        "QueueArn": place.arn(queue),
        "ApproximateNumberOfMessages": str(counts.ready),
        "ApproximateNumberOfMessagesNotVisible": str(counts.leased),
        "ApproximateNumberOfMessagesDelayed": str(counts.delayed),
        "VisibilityTimeout": str(int(settings.visibility_timeout)),
        "MessageRetentionPeriod": str(int(settings.retention)),
        "DelaySeconds": str(int(settings.delay)),
        "SqsManagedSseEnabled": "false",
        **_DEFAULTS,
    }
    if is_fifo(queue):
        attributes |= {"FifoQueue": "true", **_FIFO_DEFAULTS}
    attributes |= {name: text for name, text in kept.items() if name in NAMES and name != "RedrivePolicy"}
    policy = _redrive_policy(queue, settings, place)
    return attributes if policy is None else attributes | {"RedrivePolicy": policy}


def _redrive_policy(queue: str, settings: QueueSettings, place: Place) -> str | None:
    """The redrive policy of a queue: as it was given, if it still is the one in effect."""
    dead = dead_letter_queue(queue, settings)
    if dead is None:
        return None
    policy = {"deadLetterTargetArn": place.arn(dead), "maxReceiveCount": settings.max_receives}
    given = settings.sqs.get("RedrivePolicy", "")
    return given if _parsed(given) == _parsed(json.dumps(policy)) else json.dumps(policy)


def changes(queue: str, attributes: Mapping[str, str], exists: Exists, allows: Exists) -> dict[str, Any]:
    """Attributes as changes of a queue's settings; raises if one is invalid. `exists` says whether there is a queue,
    `allows` whether it may become the dead-letter queue of this one."""
    changed: dict[str, Any] = {}
    kept: dict[str, str | None] = {}
    for name, text in attributes.items():
        if name not in NAMES or name in READ_ONLY or name == "All" or (name in FIFO_ONLY and not is_fifo(queue)):
            raise AwsError(INVALID_ATTRIBUTE_NAME, f"Unknown Attribute {name[:256]}.")
        if INVALID_CHARACTERS.search(text) is not None:
            raise _bad_attribute(name, " Reason: It has characters that XML cannot express.")
        if name == "FifoQueue":
            if text.lower() != "true":
                raise _bad_attribute(name, " Reason: Modifying queue type is not supported.")
        elif name in NUMBERS:
            setting = NUMBERS[name][2]
            number = _number(name, text)
            if setting is None:
                kept[name] = str(number)
            else:
                changed[setting] = float(number)
        elif name in CHOICES:
            value = next((choice for choice in CHOICES[name] if choice.lower() == text.lower()), None)
            if value is None:
                raise _bad_attribute(name)
            kept[name] = value
        elif name == "RedrivePolicy":
            changed |= _redrive_changes(queue, text, exists, allows)
            kept[name] = text or None
        else:
            if name == "RedriveAllowPolicy" and text:
                _check_redrive_allow(text)
            elif name == "Policy" and text:
                _json_object(name, text)
            kept[name] = text or None
    _check_encryption(attributes, kept)
    if kept:
        changed["sqs"] = kept
    return changed


def creation(queue: str, attributes: Mapping[str, str], now: int, exists: Exists, allows: Exists) -> dict[str, Any]:
    """The settings of a new queue, whose defaults are those of SQS."""
    changed: dict[str, Any] = {
        "visibility_timeout": 30.0,
        "delay": 0.0,
        "retention": float(RETENTION),
        "max_receives": None,
        "group_batch": is_fifo(queue),
    }
    given = changes(queue, attributes, exists, allows)
    check_throughput(given.get("sqs", {}))
    seconds = str(now // 1_000_000)
    kept = {"CreatedTimestamp": seconds, "LastModifiedTimestamp": seconds, **given.pop("sqs", {})}
    return changed | given | {"sqs": kept}


def check_throughput(kept: Mapping[str, str | None]) -> None:
    """As at AWS: high throughput is per group only where deduplication is."""
    if kept.get("FifoThroughputLimit") == "perMessageGroupId" and kept.get("DeduplicationScope") != "messageGroup":
        raise _bad_attribute(
            "FifoThroughputLimit", " Reason: perMessageGroupId needs the DeduplicationScope messageGroup."
        )


def difference(queue: str, settings: QueueSettings, attributes: Mapping[str, str], place: Place) -> str | None:
    """The first attribute that an existing queue has with another value; None if there is none."""
    existing = describe(queue, settings, Counts(), place)
    for name, text in attributes.items():
        has = existing.get(name, "")
        is_same = _parsed(has) == _parsed(text) if name.endswith("Policy") else has.lower() == text.lower()
        if not is_same:
            return name
    return None


def _parsed(text: str) -> Any:
    """A policy for comparison; numbers may be given as texts."""
    try:
        value = read_json(text)
    except ValueError:
        return text
    return {key: str(item) for key, item in value.items()} if isinstance(value, dict) else value


def _number(name: str, text: str) -> int:
    low, high, _ = NUMBERS[name]
    if not text.isascii() or not text.isdigit() or not low <= int(text[:20]) <= high:
        raise _bad_attribute(name)
    return int(text)


def _bad_attribute(name: str, reason: str = "") -> AwsError:
    return AwsError(INVALID_ATTRIBUTE_VALUE, f"Invalid value for the parameter {name}.{reason}")


def _json_object(name: str, text: str) -> dict[str, Any]:
    try:
        value = read_json(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise _bad_attribute(name)
    return value


def _redrive_changes(queue: str, text: str, exists: Exists, allows: Exists) -> dict[str, Any]:
    if not text:
        return {"max_receives": None, "dead_letter_queue": None}

    def bad(reason: str) -> AwsError:
        return bad_value(text, "RedrivePolicy", reason)

    try:
        policy = read_json(text)
    except ValueError:
        policy = None
    if not isinstance(policy, dict):
        raise bad("Redrive policy is not a valid JSON map.")
    for name in ("deadLetterTargetArn", "maxReceiveCount"):
        if name not in policy:
            raise bad(f"Redrive policy does not contain mandatory attribute: {name}.")
    for name in policy:
        if name not in ("deadLetterTargetArn", "maxReceiveCount"):
            raise bad("Only following attributes are supported: [deadLetterTargetArn, maxReceiveCount].")
    dead, count = queue_of_arn(str(policy["deadLetterTargetArn"])), str(policy["maxReceiveCount"])
    if dead is None:
        raise bad("Invalid value for deadLetterTargetArn.")
    if not count.isascii() or not count.isdigit() or not 1 <= int(count[:9]) <= 1000:
        raise bad(f"Invalid value for maxReceiveCount: {count}, valid values are from 1 to 1000 both inclusive.")
    if not exists(dead):
        raise bad("Dead letter target does not exist.")
    if dead == queue:
        raise bad("Dead-letter queue and source queue must be different.")
    if is_fifo(dead) != is_fifo(queue):
        raise bad("Dead-letter queue must be same type of queue as the source.")
    if not allows(dead):
        raise bad("Dead-letter queue does not allow this queue as a source in its RedriveAllowPolicy.")
    return {"max_receives": int(count), "dead_letter_queue": dead}


def _check_redrive_allow(text: str) -> None:
    """Raise unless this is the `RedriveAllowPolicy` of a dead-letter queue."""
    policy = _json_object("RedriveAllowPolicy", text)
    permission, arns = policy.get("redrivePermission", "allowAll"), policy.get("sourceQueueArns", [])
    if (
        not policy.keys() <= {"redrivePermission", "sourceQueueArns"}
        or permission not in ("allowAll", "denyAll", "byQueue")
        or not isinstance(arns, list)
        or any(not isinstance(arn, str) or queue_of_arn(arn) is None for arn in arns)
    ):
        raise _bad_attribute("RedriveAllowPolicy", f" Reason: {_NO_ALLOW_POLICY}, as it's in an unsupported format.")
    if permission != "byQueue" and arns:
        problem = "To specify one or more source queue ARNs, you must set redrivePermission to byQueue."
    elif permission == "byQueue" and not arns:
        problem = "When you specify byQueue, you must also specify one or more sourceQueueArns values."
    elif len(arns) > SOURCES:
        problem = f"The maximum number of source queue ARNs you can specify is {SOURCES}."
    else:
        return
    raise bad_value(text, "RedriveAllowPolicy", f"{_NO_ALLOW_POLICY}. {problem}")


def allows_source(policy: str | None, queue: str) -> bool:
    """Whether the `RedriveAllowPolicy` of a dead-letter queue allows a source queue."""
    rule = _json_object("RedriveAllowPolicy", policy) if policy else {}
    permission, arns = rule.get("redrivePermission", "allowAll"), rule.get("sourceQueueArns")
    if permission != "byQueue":
        return bool(permission == "allowAll")
    return isinstance(arns, list) and any(isinstance(arn, str) and queue_of_arn(arn) == queue for arn in arns)


def _check_encryption(attributes: Mapping[str, str], kept: dict[str, str | None]) -> None:
    """One kind of encryption replaces the other; both cannot be asked for at once."""
    key, managed = attributes.get("KmsMasterKeyId"), kept.get("SqsManagedSseEnabled")
    if key and managed == "true":
        raise AwsError(INVALID_ATTRIBUTE_NAME, _ONE_SSE)
    if key:
        kept["SqsManagedSseEnabled"] = "false"
    elif managed == "true":
        kept["KmsMasterKeyId"] = None


def check_name(queue: str, attributes: Mapping[str, str]) -> None:
    """Raise unless this is the name of a queue that SQS would create."""
    is_valid = len(queue) <= 80 and _NAME.fullmatch(queue.removesuffix(FIFO)) is not None
    wants_fifo = attributes.get("FifoQueue", "").lower() == "true"
    if wants_fifo and not (is_valid and is_fifo(queue)):
        raise AwsError(
            INVALID_PARAMETER,
            "The name of a FIFO queue can only include alphanumeric characters, hyphens, or underscores, must end with "
            ".fifo suffix and be 1 to 80 in length.",
        )
    if not is_valid or is_fifo(queue) != wants_fifo:
        raise AwsError(
            INVALID_PARAMETER,
            "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length",
        )
