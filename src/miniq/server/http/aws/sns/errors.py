"""The errors of SNS, and those that errors of the broker and of the parts that SQS shares become."""

from __future__ import annotations

from miniq.errors import (
    BadName,
    InvalidRequest,
    MiniQError,
    SubscriptionNotFound,
    TooManySubscriptions,
    TooManyTopics,
    TopicNotFound,
)
from miniq.server.http.aws import errors
from miniq.server.http.aws.errors import AwsError, Kind

NOT_FOUND = Kind("NotFoundException", "NotFound", 404)
RESOURCE_NOT_FOUND = Kind("ResourceNotFoundException", "ResourceNotFound", 404)
INVALID_PARAMETER = Kind("InvalidParameterException", "InvalidParameter")
INVALID_VALUE = Kind("InvalidParameterValueException", "ParameterValueInvalid")
VALIDATION = Kind("ValidationException", "ValidationError")
AUTHORIZATION = Kind("AuthorizationErrorException", "AuthorizationError", 403)
TOPIC_LIMIT = Kind("TopicLimitExceededException", "TopicLimitExceeded", 403)
SUBSCRIPTION_LIMIT = Kind("SubscriptionLimitExceededException", "SubscriptionLimitExceeded", 403)
TAG_LIMIT = Kind("TagLimitExceededException", "TagLimitExceeded")
EMPTY_BATCH = Kind("EmptyBatchRequestException", "EmptyBatchRequest")
TOO_MANY_ENTRIES = Kind("TooManyEntriesInBatchRequestException", "TooManyEntriesInBatchRequest")
IDS_NOT_DISTINCT = Kind("BatchEntryIdsNotDistinctException", "BatchEntryIdsNotDistinct")
INVALID_ENTRY_ID = Kind("InvalidBatchEntryIdException", "InvalidBatchEntryId")
BATCH_TOO_LONG = Kind("BatchRequestTooLongException", "BatchRequestTooLong")
INTERNAL = Kind("InternalErrorException", "InternalError", 500)

_KINDS = {
    errors.INVALID_PARAMETER: INVALID_VALUE,
    errors.INVALID_CONTENTS: INVALID_PARAMETER,
    errors.MISSING_PARAMETER: VALIDATION,
    errors.ACCESS_DENIED: AUTHORIZATION,
    errors.INTERNAL: INTERNAL,
}
"""What kinds of errors that SQS shares are called here."""


def invalid(text: str) -> AwsError:
    return AwsError(INVALID_PARAMETER, f"Invalid parameter: {text}")


def no_topic() -> AwsError:
    return AwsError(NOT_FOUND, "Topic does not exist")


def no_subscription() -> AwsError:
    return AwsError(NOT_FOUND, "Subscription does not exist")


def of_service(error: AwsError) -> AwsError:
    """An error as SNS calls it."""
    return AwsError(_KINDS.get(error.kind, error.kind), error.text)


def translated(error: MiniQError) -> AwsError:
    """What an error of the broker becomes."""
    if isinstance(error, TopicNotFound | BadName):  # no topic can have such a name
        return no_topic()
    if isinstance(error, SubscriptionNotFound):
        return no_subscription()
    if isinstance(error, TooManyTopics):
        return AwsError(TOPIC_LIMIT, error.text)
    if isinstance(error, TooManySubscriptions):
        return AwsError(SUBSCRIPTION_LIMIT, error.text)
    if isinstance(error, InvalidRequest) and error.field == "tags":
        return AwsError(TAG_LIMIT, error.text)
    if isinstance(error, InvalidRequest):
        return invalid(f"FilterPolicy: {error.text}" if (error.field or "").startswith("filter") else error.text)
    return of_service(errors.translated(error))
