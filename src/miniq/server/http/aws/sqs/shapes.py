"""The requests and replies of SQS, as its JSON protocol has them."""

from __future__ import annotations

from typing import Annotated

from msgspec import field

from miniq.server.http.aws.shape import AttributeValue, Shape, Xml

Texts = Annotated[dict[str, str], Xml("Attribute")]
Tags = Annotated[dict[str, str], Xml("Tag", "Key")]


MessageAttributes = Annotated[dict[str, AttributeValue], Xml("MessageAttribute")]
SystemAttributes = Annotated[dict[str, AttributeValue], Xml("MessageSystemAttribute")]


class OfQueue(Shape, kw_only=True):
    """A request about a queue. One that is sent to the URL of the queue need not name it."""

    queue_url: str = ""


# Queues


class CreateQueueRequest(Shape, kw_only=True):
    queue_name: str
    attributes: Texts | None = None
    tags: Tags | None = field(default=None, name="tags")


class QueueUrlReply(Shape):
    queue_url: str


class GetQueueUrlRequest(Shape, kw_only=True):
    queue_name: str
    owner: str | None = field(default=None, name="QueueOwnerAWSAccountId")


class ListQueuesRequest(Shape, kw_only=True):
    queue_name_prefix: str | None = None
    next_token: str | None = None
    max_results: int | None = None


class ListQueuesReply(Shape):
    queue_urls: Annotated[list[str], Xml("QueueUrl")] = []
    next_token: str | None = None


class DeleteQueueRequest(OfQueue):
    pass


class PurgeQueueRequest(OfQueue):
    pass


class GetQueueAttributesRequest(OfQueue, kw_only=True):
    attribute_names: Annotated[list[str] | None, Xml("AttributeName")] = None


class GetQueueAttributesReply(Shape):
    attributes: Texts = {}


class SetQueueAttributesRequest(OfQueue, kw_only=True):
    attributes: Texts


class ListQueueTagsRequest(OfQueue):
    pass


class ListQueueTagsReply(Shape):
    tags: Tags = {}


class TagQueueRequest(OfQueue, kw_only=True):
    tags: Tags


class UntagQueueRequest(OfQueue, kw_only=True):
    tag_keys: Annotated[list[str], Xml("TagKey")]


class AddPermissionRequest(OfQueue, kw_only=True):
    label: str
    account_ids: Annotated[list[str], Xml("AWSAccountId")] = field(name="AWSAccountIds")
    actions: Annotated[list[str], Xml("ActionName")]


class RemovePermissionRequest(OfQueue, kw_only=True):
    label: str


class ListDeadLetterSourceQueuesRequest(OfQueue, kw_only=True):
    next_token: str | None = None
    max_results: int | None = None


class ListDeadLetterSourceQueuesReply(Shape):
    queue_urls: Annotated[list[str], Xml("QueueUrl")] = field(default_factory=list, name="queueUrls")
    next_token: str | None = None


# Messages


class NewMessage(Shape, kw_only=True):
    """A message to send, alone or in a batch."""

    message_body: str
    delay_seconds: int | None = None
    message_attributes: MessageAttributes | None = None
    message_system_attributes: SystemAttributes | None = None
    message_deduplication_id: str | None = None
    message_group_id: str | None = None


class SendMessageRequest(NewMessage, kw_only=True):
    queue_url: str = ""


class SentMessage(Shape, kw_only=True):
    message_id: str
    md5_of_body: str = field(name="MD5OfMessageBody")
    md5_of_attributes: str | None = field(default=None, name="MD5OfMessageAttributes")
    md5_of_system_attributes: str | None = field(default=None, name="MD5OfMessageSystemAttributes")
    sequence_number: str | None = None


class BatchEntry(Shape, kw_only=True):
    id: str


class SendEntry(NewMessage, kw_only=True):
    id: str


class SendMessageBatchRequest(OfQueue, kw_only=True):
    entries: Annotated[list[SendEntry], Xml("SendMessageBatchRequestEntry")]


class SentEntry(SentMessage, kw_only=True):
    id: str


class FailedEntry(Shape):
    id: str
    sender_fault: bool
    code: str
    message: str | None = None


Failures = Annotated[list[FailedEntry], Xml("BatchResultErrorEntry")]


class SendMessageBatchReply(Shape):
    successful: Annotated[list[SentEntry], Xml("SendMessageBatchResultEntry")] = []
    failed: Failures = []


class ReceiveMessageRequest(OfQueue, kw_only=True):
    attribute_names: Annotated[list[str] | None, Xml("AttributeName")] = None
    message_system_attribute_names: Annotated[list[str] | None, Xml("MessageSystemAttributeName")] = None
    message_attribute_names: Annotated[list[str] | None, Xml("MessageAttributeName")] = None
    max_number_of_messages: int | None = None
    visibility_timeout: int | None = None
    wait_time_seconds: int | None = None
    receive_request_attempt_id: str | None = None


class ReceivedMessage(Shape, kw_only=True):
    message_id: str
    receipt_handle: str
    md5_of_body: str = field(name="MD5OfBody")
    body: str
    attributes: Texts = {}
    md5_of_attributes: str | None = field(default=None, name="MD5OfMessageAttributes")
    message_attributes: MessageAttributes = {}


class ReceiveMessageReply(Shape):
    messages: Annotated[list[ReceivedMessage], Xml("Message")] = []


class DeleteMessageRequest(OfQueue, kw_only=True):
    receipt_handle: str


class DeleteEntry(BatchEntry, kw_only=True):
    receipt_handle: str


class DeleteMessageBatchRequest(OfQueue, kw_only=True):
    entries: Annotated[list[DeleteEntry], Xml("DeleteMessageBatchRequestEntry")]


class DeleteMessageBatchReply(Shape):
    successful: Annotated[list[BatchEntry], Xml("DeleteMessageBatchResultEntry")] = []
    failed: Failures = []


class ChangeMessageVisibilityRequest(OfQueue, kw_only=True):
    receipt_handle: str
    visibility_timeout: int


class VisibilityEntry(BatchEntry, kw_only=True):
    receipt_handle: str
    visibility_timeout: int | None = None


class ChangeMessageVisibilityBatchRequest(OfQueue, kw_only=True):
    entries: Annotated[list[VisibilityEntry], Xml("ChangeMessageVisibilityBatchRequestEntry")]


class ChangeMessageVisibilityBatchReply(Shape):
    successful: Annotated[list[BatchEntry], Xml("ChangeMessageVisibilityBatchResultEntry")] = []
    failed: Failures = []


# Move tasks


class StartMessageMoveTaskRequest(Shape, kw_only=True):
    source_arn: str
    destination_arn: str | None = None
    rate: int | None = field(default=None, name="MaxNumberOfMessagesPerSecond")


class StartMessageMoveTaskReply(Shape):
    task_handle: str


class ListMessageMoveTasksRequest(Shape, kw_only=True):
    source_arn: str
    max_results: int | None = None


class MoveTask(Shape, kw_only=True):
    task_handle: str | None = None
    status: str
    source_arn: str
    destination_arn: str | None = None
    rate: int | None = field(default=None, name="MaxNumberOfMessagesPerSecond")
    moved: int = field(name="ApproximateNumberOfMessagesMoved")
    to_move: int = field(name="ApproximateNumberOfMessagesToMove")
    failure_reason: str | None = None
    started_timestamp: int


class ListMessageMoveTasksReply(Shape):
    results: Annotated[list[MoveTask], Xml("ListMessageMoveTasksResultEntry")] = []


class CancelMessageMoveTaskRequest(Shape, kw_only=True):
    task_handle: str


class CancelMessageMoveTaskReply(Shape):
    moved: int = field(name="ApproximateNumberOfMessagesMoved")
