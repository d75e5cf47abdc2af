"""Chords without a counter: the body is sent when the results of all parts of the header are there.

Each part stores its result, and then looks whether those of the others are there, until one is missing. The part that
stores the last result finds all of them; of several that do, the one that is first to write the record of the chord
sends the body. So a part that runs again, because its worker was lost, changes nothing, and parts need not wait to be
counted. The part that wrote the record may send the body again if it runs again before it has noted that the body is
sent.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from typing import Any

import msgspec
from celery import states
from celery.backends.base import _create_chord_error_with_cause
from celery.canvas import maybe_signature
from celery.exceptions import ChordError
from celery.result import GroupResult, allow_join_result, result_from_tuple
from celery.utils.log import get_logger
from msgspec import Struct

from miniq.client.keeping import Keeping, id_of

logger = get_logger(__name__)

REMEMBERED = 100
"""Chords of which a process remembers the parts."""


class Chord(Struct):
    """The record of a chord whose parts have all returned."""

    by: str
    """The part that sends the body."""
    sent: bool = False


class Parts:
    """The parts of a chord, as far as this process knows. Threads of a pool may share it: parts are removed by name."""

    def __init__(self, header: Any) -> None:
        ids = _leaves(header)
        random.shuffle(ids)
        self.missing: dict[str, None] = dict.fromkeys(ids)
        """Those whose results may not be there yet, in random order: processes look at different ones first."""

    def returned(self, task_id: str) -> None:
        """The result of this part is there."""
        self.missing.pop(task_id, None)


_read_chord = msgspec.json.Decoder(Chord).decode
_read_tuples = msgspec.json.Decoder(list[Any]).decode
_encode = msgspec.json.Encoder().encode


class Chords:
    """The part of the backend that runs chords."""

    app: Any
    kept: Keeping
    expires: float | None

    def apply_chord(self, header_result_args: tuple[Any, ...], body: Any, **_: Any) -> None:
        """Called before the header is sent."""
        self.ensure_chords_allowed()  # type: ignore[attr-defined]
        self.app.GroupResult(*header_result_args).save(backend=self)

    def add_to_chord(self, chord_id: str, result: Any) -> None:
        """A part adds another one, whose result is passed to the body after those of the header."""
        id, added = _id("more", chord_id), [result.as_tuple()]
        while True:
            was = self.kept.get(id)
            more = [] if was is None or was.result is None else _read_tuples(was.result)
            if self.kept.put(id, _encode([*more, *added]), self.expires, was=was, new=was is None):
                return

    def on_chord_part_return(self, request: Any, state: str, result: Any, **_: Any) -> None:
        """A part of the header has returned, with or without success."""
        group_id, task_id = request.group, request.id
        if not group_id or not task_id:
            return
        if not self._is_there(task_id):  # the task ignores its result, but the body needs it
            self.store_result(task_id, result, state, request=request)  # type: ignore[attr-defined]
        parts = self._parts(group_id)
        if parts is None:
            self._without_group(group_id, request)
            return
        parts.returned(task_id)
        complete = self._all_there(list(parts.missing), parts) and self._all_there(self._more(group_id))
        if complete and self._is_mine(group_id, task_id):
            self._send_body(group_id, request)
            self.kept.put(_id("chord", group_id), _encode(Chord(task_id, sent=True)), self.expires)
            self._known.pop(group_id, None)

    def _is_there(self, task_id: str) -> bool:
        found = self.kept.get(id_of(task_id))
        return found is not None and found.is_final

    def _all_there(self, task_ids: list[str], parts: Parts | None = None) -> bool:
        """Whether the results of all these parts are there; `parts` is told of those that are, up to the first that is
        not."""
        for task_id in task_ids:
            if not self._is_there(task_id):
                return False
            if parts is not None:
                parts.returned(task_id)
        return True

    @property
    def _known(self) -> OrderedDict[str, Parts]:
        known: OrderedDict[str, Parts] = self.__dict__.setdefault("_known_chords", OrderedDict())
        return known

    def _parts(self, group_id: str) -> Parts | None:
        """The parts of the header of a chord, None if its group does not exist."""
        parts = self._known.get(group_id)
        if parts is None:
            header = GroupResult.restore(group_id, backend=self, app=self.app)
            self.__dict__["_cache"].pop(group_id, None)
            if header is None:
                return None
            parts = self._known[group_id] = Parts(header)
            while len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
        return parts

    def _more(self, group_id: str) -> list[str]:
        """The parts that others have added, before their own results were there."""
        return [part for added in self._added(group_id) for part in _leaves(added)]

    def _added(self, group_id: str) -> list[Any]:
        found = self.kept.get(_id("more", group_id))
        added = [] if found is None or found.result is None else _read_tuples(found.result)
        return [result_from_tuple(_tuples(each), app=self.app) for each in added]

    def _is_mine(self, group_id: str, task_id: str) -> bool:
        """Whether this part is the one that sends the body."""
        id = _id("chord", group_id)
        if self.kept.put(id, _encode(Chord(task_id)), self.expires, new=True):
            return True
        found = self.kept.get(id)
        chord = None if found is None or found.result is None else _read_chord(found.result)
        return chord is not None and chord.by == task_id and not chord.sent

    def _without_group(self, group_id: str, request: Any) -> None:
        """The group of a chord is removed when the body is sent; otherwise it has expired."""
        if self.kept.get(_id("chord", group_id)) is None:
            logger.error("Chord %r: its group does not exist any more", group_id)
            error = ChordError(f"GroupResult {group_id} no longer exists")
            self._fail(maybe_signature(request.chord, app=self.app), error)

    def _send_body(self, group_id: str, request: Any) -> None:
        """Send the body with the results of all parts, or note that it has failed."""
        callback = maybe_signature(request.chord, app=self.app)
        header = GroupResult.restore(group_id, backend=self, app=self.app)
        if header is None:  # another part has sent it meanwhile
            return
        for added in self._added(group_id):
            header.add(added)
        try:
            with allow_join_result():
                results = header.join_native(timeout=self.app.conf.result_chord_join_timeout, propagate=True)
        except Exception as error:
            culprit = self._first_failed(header)
            reason = repr(error) if culprit is None else f"Dependency {culprit} raised {error!r}"
            logger.exception("Chord %r raised: %r", group_id, reason)
            self._fail(callback, _create_chord_error_with_cause(message=reason, original_exc=error))
        else:
            try:
                callback.delay(results)
            except Exception as error:
                logger.exception("Chord %r raised: %r", group_id, error)
                reason = f"Callback error: {error!r}"
                self._fail(callback, _create_chord_error_with_cause(message=reason, original_exc=error))
        header.delete(backend=self)

    def _first_failed(self, header: Any) -> str | None:
        """The id of a part that failed."""
        states_of = ((id, self.get_task_meta(id)["status"]) for id in _leaves(header))  # type: ignore[attr-defined]
        return next((id for id, state in states_of if state in states.PROPAGATE_STATES), None)

    def _fail(self, callback: Any, error: ChordError) -> None:
        self.chord_error_from_stack(callback=callback, exc=error)  # type: ignore[attr-defined]


def _leaves(result: Any) -> list[str]:
    """The ids of the tasks in a result, which may be a group of groups."""
    if isinstance(result, GroupResult):
        return [leaf for each in result.results for leaf in _leaves(each)]
    return [str(result.id)]


def _tuples(value: Any) -> Any:
    """Nested lists of JSON as the tuples they were."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _id(kind: str, group_id: str) -> str:
    return id_of(f"celery-{kind}-{group_id}")
