"""The errors of SQS, with the names that its two protocols give them, and those that errors of the broker become."""

from __future__ import annotations

from msgspec import Struct

from miniq.errors import (
    BadName,
    Closed,
    Forbidden,
    InvalidRequest,
    MiniQError,
    NoSpace,
    Overloaded,
    QueueFull,
    QueueNotFound,
    QueueProtected,
    StoreError,
    TooManyQueues,
    Unauthorized,
)

LEGACY = "AWS.SimpleQueueService."
"""Prefix of many codes in the Query protocol."""


class Kind(Struct, frozen=True):
    """A kind of error."""

    name: str
    """In the JSON protocol."""
    code: str
    """In the Query protocol, in the header `x-amzn-query-error`, and in entries of batches."""
    status: int = 400

    @property
    def is_sender(self) -> bool:
        """Whether the caller made the mistake."""
        return self.status < 500


QUEUE_DOES_NOT_EXIST = Kind("QueueDoesNotExist", f"{LEGACY}NonExistentQueue")
QUEUE_NAME_EXISTS = Kind("QueueNameExists", "QueueAlreadyExists")
INVALID_PARAMETER = Kind("InvalidParameterValueException", "InvalidParameterValue")
MISSING_PARAMETER = Kind("MissingRequiredParameterException", "MissingParameter")
INVALID_ATTRIBUTE_NAME = Kind("InvalidAttributeName", "InvalidAttributeName")
INVALID_ATTRIBUTE_VALUE = Kind("InvalidAttributeValue", "InvalidAttributeValue")
INVALID_CONTENTS = Kind("InvalidMessageContents", "InvalidMessageContents")
RECEIPT_HANDLE_IS_INVALID = Kind("ReceiptHandleIsInvalid", "ReceiptHandleIsInvalid")
MESSAGE_NOT_INFLIGHT = Kind("MessageNotInflight", f"{LEGACY}MessageNotInflight")
PURGE_IN_PROGRESS = Kind("PurgeQueueInProgress", f"{LEGACY}PurgeQueueInProgress", 403)
EMPTY_BATCH = Kind("EmptyBatchRequest", f"{LEGACY}EmptyBatchRequest")
TOO_MANY_ENTRIES = Kind("TooManyEntriesInBatchRequest", f"{LEGACY}TooManyEntriesInBatchRequest")
IDS_NOT_DISTINCT = Kind("BatchEntryIdsNotDistinct", f"{LEGACY}BatchEntryIdsNotDistinct")
BATCH_TOO_LONG = Kind("BatchRequestTooLong", f"{LEGACY}BatchRequestTooLong")
INVALID_ENTRY_ID = Kind("InvalidBatchEntryId", f"{LEGACY}InvalidBatchEntryId")
RESOURCE_NOT_FOUND = Kind("ResourceNotFoundException", "ResourceNotFoundException", 404)
UNSUPPORTED = Kind("UnsupportedOperation", f"{LEGACY}UnsupportedOperation")
OVER_LIMIT = Kind("OverLimit", "OverLimit", 403)
UNKNOWN_ACTION = Kind("UnknownOperationException", "InvalidAction")
SERIALIZATION = Kind("SerializationException", "MalformedQueryString")
ACCESS_DENIED = Kind("AccessDeniedException", "AccessDenied", 403)
NO_CREDENTIALS = Kind("MissingAuthenticationTokenException", "MissingAuthenticationToken", 403)
UNKNOWN_KEY = Kind("UnrecognizedClientException", "InvalidClientTokenId", 403)
BAD_SIGNATURE = Kind("InvalidSignatureException", "SignatureDoesNotMatch", 403)
INCOMPLETE_SIGNATURE = Kind("IncompleteSignatureException", "IncompleteSignature")
UNAVAILABLE = Kind("ServiceUnavailableException", "ServiceUnavailable", 503)
INTERNAL = Kind("InternalFailure", "InternalFailure", 500)


class AwsError(Exception):
    """An error that the caller gets."""

    def __init__(self, kind: Kind, text: str) -> None:
        super().__init__(text)
        self.kind = kind
        self.text = text


def invalid(text: str) -> AwsError:
    return AwsError(INVALID_PARAMETER, text)


def bad_value(value: object, parameter: str, reason: str) -> AwsError:
    """The error for a parameter, in the words of SQS."""
    return invalid(f"Value {value} for parameter {parameter} is invalid. Reason: {reason}")


def missing(parameter: str) -> AwsError:
    return AwsError(MISSING_PARAMETER, f"The request must contain the parameter {parameter}.")


def no_queue() -> AwsError:
    return AwsError(QUEUE_DOES_NOT_EXIST, "The specified queue does not exist.")


_KINDS: tuple[tuple[type[MiniQError], Kind], ...] = (
    (Unauthorized, UNKNOWN_KEY),
    (Forbidden, ACCESS_DENIED),
    (QueueFull, OVER_LIMIT),
    (TooManyQueues, OVER_LIMIT),
    (QueueProtected, UNSUPPORTED),
    (NoSpace, UNAVAILABLE),
    (StoreError, UNAVAILABLE),
    (Closed, UNAVAILABLE),
    (Overloaded, UNAVAILABLE),
    (InvalidRequest, INVALID_PARAMETER),
)


def translated(error: MiniQError) -> AwsError:
    """What an error of the broker becomes."""
    if isinstance(error, QueueNotFound | BadName):  # no queue can have such a name
        return no_queue()
    kind = next((kind for known, kind in _KINDS if isinstance(error, known)), INTERNAL)
    return AwsError(kind, error.text)
