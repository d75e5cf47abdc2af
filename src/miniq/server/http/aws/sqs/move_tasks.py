"""The actions on move tasks: redrives of a dead-letter queue. A broker remembers those that it started."""

from __future__ import annotations

import json
import secrets
from base64 import b64decode, b64encode
from collections.abc import Sequence

from miniq.errors import QueueNotFound
from miniq.message import RedriveProgress
from miniq.server.http.aws.actions import Call, Task, action
from miniq.server.http.aws.addresses import queue_of_arn
from miniq.server.http.aws.errors import (
    ACCESS_DENIED,
    OVER_LIMIT,
    QUEUE_DOES_NOT_EXIST,
    RESOURCE_NOT_FOUND,
    UNAVAILABLE,
    UNSUPPORTED,
    AwsError,
    bad_value,
    invalid,
)
from miniq.server.http.aws.json_text import read_json
from miniq.server.http.aws.sqs import shapes
from miniq.server.http.aws.sqs.queues import sources

REMEMBERED = 10
MAX_RATE = 500
FAILURES = {
    "queue_not_found": QUEUE_DOES_NOT_EXIST,
    "queue_full": OVER_LIMIT,
    "too_many_queues": OVER_LIMIT,
    "forbidden": ACCESS_DENIED,
    "no_space": UNAVAILABLE,
}
"""Why messages were left behind so that the task has failed, by the reason for which a redrive skips them."""


@action(shapes.StartMessageMoveTaskRequest, "manage", "source")
async def start_message_move_task(call: Call) -> shapes.StartMessageMoveTaskReply:
    request, queue, broker = call.request, call.queue, call.broker
    await _check_source(call)
    if not sources(call, queue):
        raise invalid("Source queue must be configured as a Dead Letter Queue.")
    to = None
    if request.destination_arn:
        to = queue_of_arn(request.destination_arn)
        if to is not None:
            broker.keys.check(call.caller.secret, "send", to)
        if to is None or broker.catalog.find(to) is None:
            raise _no_resource("DestinationArn")
    if request.rate is not None and not 1 <= request.rate <= MAX_RATE:
        raise bad_value(request.rate, "MaxNumberOfMessagesPerSecond", f"Must be between 1 and {MAX_RATE}.")
    tasks = call.memory.tasks.setdefault(queue, [])
    await _update(call, tasks)
    if tasks and tasks[0].progress.running:
        text = (
            "There is already a task running. Only one active task is allowed for a source queue arn at a given time."
        )
        raise invalid(text)
    to_move = (await broker.queue(queue)).counts.ready
    progress = await broker.redrive(
        queue,
        to=to,
        rate=request.rate,
        may_send=lambda target: call.caller.may(broker, "send", target),
        check_new=_refuse_new,
        patience=0,
    )
    started = broker.clock.now() // 1000
    task = Task(secrets.token_hex(16), queue, request.destination_arn, request.rate, started, to_move, progress)
    tasks.insert(0, task)
    del tasks[REMEMBERED:]
    return shapes.StartMessageMoveTaskReply(_handle(call, task))


def _refuse_new(queues: Sequence[str]) -> None:
    """A move task creates no queue: messages whose queue is gone stay."""
    raise QueueNotFound(f"queue: there is no queue {queues[0]!r}", field="queue")


async def _check_source(call: Call) -> None:
    try:
        await call.settings()
    except QueueNotFound:
        raise _no_resource("SourceArn") from None


def _no_resource(parameter: str) -> AwsError:
    text = f"The resource that you specified for the {parameter} parameter doesn't exist."
    return AwsError(RESOURCE_NOT_FOUND, text)


async def _update(call: Call, tasks: Sequence[Task]) -> None:
    """Bring the progress of the latest task up to date."""
    if tasks and tasks[0].progress.running:
        task = tasks[0]
        task.progress = (await call.broker.queue(task.source)).redrive or _ended(task.progress)


def _ended(progress: RedriveProgress) -> RedriveProgress:
    return RedriveProgress(progress.moved, progress.skipped, False, progress.reasons)


@action(shapes.ListMessageMoveTasksRequest, "read", "source")
async def list_message_move_tasks(call: Call) -> shapes.ListMessageMoveTasksReply:
    most = call.request.max_results
    if most is not None and not 1 <= most <= REMEMBERED:
        raise bad_value(most, "MaxResults", f"Must be between 1 and {REMEMBERED}, if provided.")
    await _check_source(call)
    tasks = call.memory.tasks.get(call.queue, [])
    await _update(call, tasks)
    return shapes.ListMessageMoveTasksReply([_entry(call, task) for task in tasks[: most or 1]])


def _entry(call: Call, task: Task) -> shapes.MoveTask:
    progress = task.progress
    reason = None
    if task.is_cancelled:
        status = "CANCELLED"
    elif progress.running:
        status = "RUNNING"
    else:
        reason = next((kind.code for skipped, kind in FAILURES.items() if skipped in progress.reasons), None)
        status = "COMPLETED" if reason is None else "FAILED"
    return shapes.MoveTask(
        task_handle=_handle(call, task) if status == "RUNNING" else None,
        status=status,
        source_arn=call.place.arn(task.source),
        destination_arn=task.destination,
        rate=task.rate,
        moved=progress.moved,
        to_move=task.to_move,
        failure_reason=reason,
        started_timestamp=task.started,
    )


@action(shapes.CancelMessageMoveTaskRequest, "manage", "source")
async def cancel_message_move_task(call: Call) -> shapes.CancelMessageMoveTaskReply:
    await _check_source(call)
    id, _ = read_handle(call.request.task_handle)
    tasks = call.memory.tasks.get(call.queue, [])
    task = next((task for task in tasks if task.id == id), None)
    if task is None:
        raise AwsError(RESOURCE_NOT_FOUND, "Task does not exist.")
    await _update(call, tasks)
    if not task.progress.running or task.is_cancelled:
        raise AwsError(UNSUPPORTED, "Only active tasks can be cancelled.")
    task.is_cancelled = True
    task.progress = _ended(await call.broker.cancel_redrive(call.queue) or task.progress)
    return shapes.CancelMessageMoveTaskReply(task.progress.moved)


def _handle(call: Call, task: Task) -> str:
    return b64encode(json.dumps({"taskId": task.id, "sourceArn": call.place.arn(task.source)}).encode()).decode()


def read_handle(handle: str) -> tuple[str, str]:
    """The id of the task and the ARN of the source queue in a task handle."""
    try:
        task = read_json(b64decode(handle, validate=True))
        return str(task["taskId"]), str(task["sourceArn"])
    except (ValueError, KeyError, TypeError):
        raise invalid("Value for parameter TaskHandle is invalid.") from None
