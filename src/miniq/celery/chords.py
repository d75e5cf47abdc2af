"""Chords, counted exactly: a record per chord holds which parts of the header have returned, and one of them, the last,
sends the body.

A part that runs again, because its worker was lost, is counted once. The part that completed the chord may send the
body again if it runs again before it has noted that the body is sent; no other can.
"""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Callable
from typing import Any

import msgspec
from celery.backends.base import _create_chord_error_with_cause
from celery.canvas import maybe_signature
from celery.exceptions import ChordError
from celery.result import AsyncResult, GroupResult, allow_join_result, result_from_tuple
from celery.utils.log import get_logger
from msgspec import Struct

from miniq.client.keeping import Keeping, id_of

logger = get_logger(__name__)


class Chord(Struct, omit_defaults=True):
    """What is known of a chord."""

    done: list[str] = []
    """The parts that have returned."""
    size: int | None = None
    """How many there are, as the sender said when it had sent all."""
    more: list[Any] = []
    """The results of parts that a part has added."""
    last: str | None = None
    """The part that completed it, which sends the body."""
    sent: bool = False


_decode = msgspec.json.Decoder(Chord).decode
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

    def set_chord_size(self, group_id: str, chord_size: int) -> None:
        """Called before the last part of the header is sent."""

        def change(chord: Chord) -> bool:
            chord.size = chord_size
            return True

        self._change(group_id, change)

    def add_to_chord(self, chord_id: str, result: Any) -> None:
        """A part adds another one, whose result is passed to the body after those of the header."""
        added = result.as_tuple()

        def change(chord: Chord) -> bool:
            if added in chord.more:
                return False
            chord.more.append(added)
            return True

        self._change(chord_id, change)

    def on_chord_part_return(self, request: Any, state: str, result: Any, **_: Any) -> None:
        """A part of the header has returned, with or without success."""
        group_id, task_id = request.group, request.id
        if not group_id or not task_id:
            return
        if getattr(request, "ignore_result", False):  # the body needs it nevertheless
            self.store_result(task_id, result, state, request=request)  # type: ignore[attr-defined]
        part = _short(task_id)
        size = request.chord.get("chord_size")

        def change(chord: Chord) -> bool:
            if chord.sent or chord.last is not None:
                return False
            chord.done = [*dict.fromkeys([*chord.done, part])]
            total = chord.size if size is None else size
            if total is not None and len(chord.done) >= total + len(chord.more):
                chord.last = part
            return True

        chord = self._change(group_id, change)
        if chord.last == part and not chord.sent:
            self._send_body(group_id, request, chord)

            def sent(chord: Chord) -> bool:
                chord.done, chord.more, chord.sent = [], [], True
                return True

            self._change(group_id, sent)

    def _send_body(self, group_id: str, request: Any, chord: Chord) -> None:
        """Send the body with the results of all parts, or note that it has failed."""
        callback = maybe_signature(request.chord, app=self.app)
        header = GroupResult.restore(group_id, backend=self, app=self.app)
        if header is None:
            logger.error("Chord %r: its group does not exist any more", group_id)
            self._fail(callback, ChordError(f"GroupResult {group_id} no longer exists"))
            return
        for added in chord.more:
            header.add(result_from_tuple(_tuples(added), app=self.app))
        try:
            with allow_join_result():
                results = header.join_native(timeout=self.app.conf.result_chord_join_timeout, propagate=True)
        except Exception as error:
            culprit = next(iter(_failed(header)), None)
            reason = repr(error) if culprit is None else f"Dependency {culprit.id} raised {error!r}"
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

    def _fail(self, callback: Any, error: ChordError) -> None:
        self.chord_error_from_stack(callback=callback, exc=error)  # type: ignore[attr-defined]

    def _change(self, group_id: str, change: Callable[[Chord], bool]) -> Chord:
        """Change the record of a chord, which `change` does unless nothing is to be changed."""
        id = id_of(f"celery-chord-{group_id}")
        while True:
            was = self.kept.get(id)
            chord = Chord() if was is None or was.result is None else _decode(was.result)
            if not change(chord) or self.kept.put(id, _encode(chord), self.expires, was=was, new=was is None):
                return chord


def _short(task_id: str) -> str:
    """A part in few characters."""
    return b64encode(hashlib.sha256(task_id.encode()).digest()[:9]).decode()


def _failed(header: Any) -> list[AsyncResult]:
    return list(header._failed_join_report())


def _tuples(value: Any) -> Any:
    """Nested lists of JSON as the tuples they were."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
