"""The smallest interface to MiniQ: three calls on the queue `default` of an embedded broker.

They return what the short HTTP routes return, and messages are deleted by id alone.
"""

from __future__ import annotations

import os
from contextlib import suppress
from datetime import datetime
from typing import Any

from miniq.api.operations import AckById
from miniq.client._sync.message import Message
from miniq.client.connection import connect
from miniq.client.interrupts import shield
from miniq.errors import InvalidRequest, MiniQError, NoSpace, QueueFull

QUEUE = "default"
BATCH = 1000
ENOUGH_BYTES = 15 * 1024 * 1024
"""`read_messages` stops fetching beyond this: a single receive is capped at 16 MiB."""


class MiniQ:
    """`MiniQ(folder)`; a message that was read and not deleted is available again after `turn_around_time` seconds."""

    def __init__(self, path: str | os.PathLike[str], turn_around_time: float = 30) -> None:
        self._client = connect(path)
        self._queue = self._client.queue(QUEUE)
        self._turn_around_time = turn_around_time

    def push_message(self, params: Any) -> dict[str, Any]:
        """Send `params["msg"]`, or `params` itself if it is not a dict: `{"success", "data": {"message_id"}}`.

        If it cannot be sent: `{"success": False, "data": why}`.
        """
        if params is None or (isinstance(params, dict) and "msg" not in params):
            return _refused('msg: missing; give {"msg": ...} with any JSON value')
        if isinstance(params, dict):
            others = sorted(str(name) for name in params if name != "msg")
            if others:
                return _refused(f"{others[0]}: no such field; there is only msg")
            params = params["msg"]
        try:
            return {"success": True, "data": {"message_id": self._queue.send(params)}}
        except (InvalidRequest, QueueFull, NoSpace) as error:
            return _refused(error.text)

    def read_messages(self) -> dict[str, Any]:
        """All messages that are available, up to the response cap, leased for the turn-around time:
        `{"success", "data": [{"id", "msg", ...}]}`."""
        messages: dict[str, Message] = {}
        size = 0
        try:
            with shield:
                while size < ENOUGH_BYTES:
                    batch = self._queue.receive(BATCH, visibility_timeout=self._turn_around_time)
                    if not batch or batch[0].id in messages:  # a very short lease has already expired
                        break
                    messages |= {message.id: message for message in batch}
                    size += sum(len(message.data) for message in batch)
                shown = [_show(message) for message in messages.values()]
        except BaseException:
            with suppress(MiniQError):
                self._queue.release(messages.values())
            raise
        return {"success": True, "data": shown}

    def delete_message(self, id: str) -> dict[str, Any]:
        """Remove a message after processing: `{"success": True}`, or False if there is no such message."""
        if not isinstance(id, str):
            return {"success": False}
        return {"success": self._client.perform(AckById(QUEUE, id))}

    def close(self) -> None:
        """Close the broker. Safe to repeat."""
        self._client.close()

    def __enter__(self) -> MiniQ:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _show(message: Message) -> dict[str, Any]:
    return {
        "id": message.id,
        "msg": message.body,
        "receives": message.receives,
        "sent_at": _text(message.sent_at),
        "lease_until": _text(message.visible_at),
    }


def _text(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")


def _refused(why: str) -> dict[str, Any]:
    return {"success": False, "data": why}
