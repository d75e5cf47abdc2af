"""An import into a queue or a topic: rows are uploaded to stages, invisibly, and committed in steps; a step is
committed once per job, however often it is repeated.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from itertools import count, islice

from miniq.cli.formats import Row
from miniq.cli.messages import batched
from miniq.cli.processes import Stop
from miniq.client._sync.queue import Queue
from miniq.client._sync.topic import Topic
from miniq.errors import InvalidRequest, MiniQError, StoreUnavailable
from miniq.message import Draft

ATOMIC = 10_000
"""Messages that are committed at once."""
_INDEX = re.compile(r"messages\[(\d+)\]\.")
Part = tuple[list[str], list[Draft]]
"""Messages that fit in one call, and where they are in the file."""


class StagedImport:
    """One run of an import."""

    def __init__(self, to: Queue | Topic, job: str) -> None:
        self._to = to
        self._job = job
        self._staged: dict[int, list[int]] = {}
        """The sizes of the parts of each step that is not committed."""
        self._committing = -1
        self.sent = 0
        self.sent_by_job = 0
        """Messages of steps that an earlier run of the job has committed."""
        self.deduplicated = 0
        """Messages that were dropped, because the queue or topic knew their dedup ids."""

    @property
    def done(self) -> int:
        return self.sent + self.sent_by_job + self.deduplicated

    def send_file(self, rows: Iterator[Row], told: Callable[[int], None]) -> None:
        """Upload all rows, then commit them: a row that is refused, or a signal, is noticed before anything is added.
        `told` is called with the number of rows uploaded so far."""
        uploaded = 0
        for step in count():
            for part in parts(islice(rows, ATOMIC)):
                self._upload(step, part)
                uploaded += len(part[1])
                told(uploaded)
            if step not in self._staged:
                break
        Stop()  # from here on the first signal only lets the command finish
        for step in list(self._staged):
            self._commit(step)

    def send_stream(self, rows: Iterator[Row]) -> None:
        """Commit rows as they come."""
        for step, part in enumerate(parts(rows)):
            self._upload(step, part)
            self._commit(step)

    def abandon(self, error: BaseException) -> None:
        """Discard what was uploaded and not committed, unless the broker is unreachable; it expires then."""
        if isinstance(error, StoreUnavailable):
            return
        try:
            for step, sizes in self._staged.items():
                if not self._to.discard_stages(self._job, step) and step == self._committing:
                    self.sent += sum(sizes)  # the commit was interrupted, and has taken effect
        except MiniQError:
            return  # the first error is the one to show

    def _upload(self, step: int, part: Part) -> None:
        places, drafts = part
        sizes = self._staged.setdefault(step, [])
        with named(places):
            self._to.stage(self._job, step, 0, 0).upload(drafts, len(sizes))
        sizes.append(len(drafts))

    def _commit(self, step: int) -> None:
        self._committing = step
        committed = self._to.commit_stages(self._job, step, [(0, 0)])
        staged = sum(self._staged.pop(step))
        if committed.repeated:
            self.sent_by_job += committed.messages
            self._to.discard_stages(self._job, step)
        else:
            self.sent += committed.messages
            self.deduplicated += staged - committed.messages


def parts(rows: Iterable[Row]) -> Generator[Part]:
    """Rows in parts that fit in one call."""
    places: list[str] = []

    def drafts() -> Iterator[Draft]:
        for place, draft in rows:
            places.append(place)
            yield draft

    for batch in batched(drafts()):
        yield places[: len(batch)], batch
        del places[: len(batch)]


@contextmanager
def named(places: list[str]) -> Iterator[None]:
    """Say in errors about a message where it is in the file."""
    try:
        yield
    except InvalidRequest as error:
        if (index := _INDEX.match(error.text)) is not None:
            raise type(error)(f"{places[int(index[1])]}: {error.text[index.end() :]}") from None
        if len(places) == 1 and error.field in Draft.__struct_fields__:
            raise type(error)(f"{places[0]}: {error.text}") from None
        raise
