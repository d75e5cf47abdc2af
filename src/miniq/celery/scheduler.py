"""Celery's beat on native schedules: `celery beat -S miniq.celery:Scheduler`, with as many beats as you like.

Each entry is a schedule of MiniQ (`timings.py`), which sends a small message to the queue `celery.beat.APP` at each of
its moments: once, whatever crashes and however many brokers and beats there are. The beats wait for these messages; the
one that leases a message sends the task, under an id made of the moment, and acks. If it dies in between, another beat
gets the message. Moments that passed while no beat ran make one task per entry, as with Celery's own schedulers.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from celery import beat
from celery.exceptions import ImproperlyConfigured
from celery.utils.log import get_logger

from miniq.celery.timings import Timing, next_moment, timing_of
from miniq.celery.urls import Server, read_address
from miniq.client._sync.client import Client
from miniq.client._sync.message import Message
from miniq.client._sync.queue import Queue
from miniq.errors import InvalidRequest, MessageNotFound, Overloaded, ScheduleNotFound, StaleReceipt, StoreUnavailable
from miniq.message import NAME_LENGTH
from miniq.schedule import MOMENT_HEADER, Schedule

logger = get_logger(__name__)

PREFIX = "celery.beat"
TIMING = "celery-timing"
"""The header that tells a schedule of a beat from others, and whether the timing of its entry has changed."""
WAIT = 5.0
"""The longest that a beat waits before it looks whether it is to end, or its entries have changed."""
AGAIN = 1.0
"""Seconds before another attempt while the broker is unreachable, and before a message goes to another beat."""
STALE = timedelta(seconds=60)
"""Of moments that are this late only the last makes a task."""
LOST = timedelta(seconds=300)
"""How long after the single moment of a schedule its successor is missed, if no beat has set it."""
_OTHER = re.compile(r"[^A-Za-z0-9._-]+")


class Scheduler(beat.Scheduler):
    """A scheduler for `celery beat` that keeps its entries in MiniQ."""

    def __init__(self, app: Any, *arguments: Any, **options: Any) -> None:
        self._address = _address(app)
        self._client: Client | None = None
        self._process = os.getpid()
        self._prefix = f"{PREFIX}.{_word(app.main or 'celery')}"
        self._published: dict[str, beat.ScheduleEntry] | None = None
        super().__init__(app, *arguments, **options)

    @property
    def client(self) -> Client:
        """The client of this process: an embedded beat is forked from its worker."""
        if self._client is None or self._process != os.getpid():
            self._process = os.getpid()
            try:
                self._client = self._address.connect()
            except InvalidRequest as error:
                raise ImproperlyConfigured(f"beat_miniq_url: {error.text}") from None
        return self._client

    @property
    def queue(self) -> Queue:
        """The queue of the moments."""
        return self.client.queue(self._prefix)

    @property
    def info(self) -> str:
        return f"    . schedules -> {self._address.url}, queue {self._prefix}"

    def setup_schedule(self) -> None:
        self.install_default_entries(self.data)
        self.update_from_dict(self.app.conf.beat_schedule)

    @property
    def schedule(self) -> dict[str, beat.ScheduleEntry]:
        entries: dict[str, beat.ScheduleEntry] = self.data
        return entries

    @schedule.setter
    def schedule(self, entries: dict[str, beat.ScheduleEntry]) -> None:
        self.data = entries

    def tick(self, *_: Any, **__: Any) -> float:
        """Wait for moments, and send their tasks; the seconds to wait before the next call."""
        try:
            if self._published is None or not self.schedules_equal(self._published, self.schedule):
                self._publish()
            messages = self.queue.receive(max=1000, wait=min(WAIT, self.max_interval))
            for message in self._current(messages):
                self._fire(message)
        except (StoreUnavailable, Overloaded) as error:
            logger.warning("beat: MiniQ is unreachable, trying again: %s", error)
            return AGAIN
        return 0.0

    def close(self) -> None:
        super().close()
        if self._client is not None and self._process == os.getpid():
            self._client.close()

    # Entries

    def _publish(self) -> None:
        """Make the schedules in MiniQ those of the entries."""
        mine = {schedule.name: schedule for schedule in self.client.schedules() if self._is_mine(schedule)}
        self.queue.configure()
        names = {}
        for entry in self.schedule.values():
            name = names[entry.name] = self._name(entry.name)
            self._put(entry, mine.get(name))
        for name in mine.keys() - set(names.values()):
            with contextlib.suppress(ScheduleNotFound):  # another beat was quicker
                self.client.delete_schedule(name)
        self._published = dict(self.schedule)

    def _is_mine(self, schedule: Schedule) -> bool:
        return schedule.name.startswith(f"{self._prefix}.") and schedule.queue == self._prefix

    def _name(self, entry: str) -> str:
        """The name of the schedule of an entry."""
        return f"{self._prefix}.{_word(entry, NAME_LENGTH - len(self._prefix) - 1)}"

    def _put(self, entry: beat.ScheduleEntry, old: Schedule | None) -> None:
        timing = timing_of(entry.schedule)
        mark = hashlib.sha256(f"{timing or entry.schedule!r}".encode()).hexdigest()[:16]
        if old is not None and old.results and old.results[0].outcome == "sent":
            entry.last_run_at = old.results[0].moment
        if timing is None:  # a schedule that only Celery understands
            kept = old is not None and old.draft is not None and (old.draft.headers or {}).get(TIMING) == mark
            if kept and old is not None and (old.next or not _is_lost(old)):
                return
            timing = Timing(at=self._next(entry, datetime.now(UTC)))
        self._set(entry, timing, mark)

    def _set(self, entry: beat.ScheduleEntry, timing: Timing, mark: str) -> None:
        name = self._name(entry.name)
        try:
            self.client.schedule(
                name,
                queue=self._prefix,
                body={"entry": entry.name, "task": entry.task},
                headers={TIMING: mark},
                cron=timing.cron,
                every=timing.every,
                at=timing.at,
                timezone=timing.timezone,
                ttl=None if timing.every is None else max(timing.every, STALE.total_seconds()),
                dedup_id=None if timing.at is None else f"{name}:{timing.at.isoformat()}",
            )
        except InvalidRequest as error:
            raise ImproperlyConfigured(f"beat_schedule[{entry.name!r}]: {error.text}") from None

    def _next(self, entry: beat.ScheduleEntry, after: datetime) -> datetime:
        try:
            return next_moment(entry.schedule, after)
        except NotImplementedError:
            text = f"beat_schedule[{entry.name!r}]: {entry.schedule!r} does not say when it is due next"
            raise ImproperlyConfigured(f"{text}; it needs a method `remaining_estimate`") from None

    # Moments

    def _current(self, messages: Iterable[Message]) -> list[Message]:
        """The messages to handle; of several stale ones of an entry, the last. The others are acked."""
        latest: dict[Any, Message] = {}
        current, stale = [], []
        for message in messages:
            if message.sent_at > datetime.now(UTC) - STALE:
                current.append(message)
                continue
            name = message.body.get("entry") if isinstance(message.body, dict) else None
            if name in latest:
                stale.append(latest[name])
            latest[name] = message
        if stale:
            self.queue.ack(stale)
        return [*latest.values(), *current]

    def _fire(self, message: Message) -> None:
        """Send the task of a moment, and ack it."""
        body, moment = message.body, message.headers.get(MOMENT_HEADER, message.id)
        entry = self.schedule.get(str(body.get("entry"))) if isinstance(body, dict) else None
        try:
            if entry is None:  # of a beat with other entries
                message.release(delay=AGAIN)
                return
            if timing_of(entry.schedule) is None:
                self._go_on(entry, message)
            task_id = str(uuid5(NAMESPACE_URL, f"{self._name(entry.name)}:{moment}"))
            options = {"task_id": task_id} | entry.options
            logger.info("Scheduler: Sending due task %s (%s)", entry.name, entry.task)
            try:
                self.apply_async(self.Entry(**dict(entry, options=options)), producer=self.producer, advance=False)
            except Exception as error:
                logger.exception("beat: the task of entry %r was not sent", entry.name)
                message.fail(error)
                return
            entry.last_run_at = entry.default_now()
            entry.total_run_count += 1
            message.ack()
        except (StaleReceipt, MessageNotFound):
            logger.warning("beat: the moment %s of %r was taken over by another beat", moment, message.queue)

    def _go_on(self, entry: beat.ScheduleEntry, message: Message) -> None:
        """Set the next moment of a schedule that only Celery understands, before this one is acked."""
        after = max(datetime.now(UTC), _moment(message))
        mark = message.headers.get(TIMING, "")
        with contextlib.suppress(ScheduleNotFound):
            upcoming = self.client.get_schedule(self._name(entry.name)).next
            if not upcoming:
                self._set(entry, Timing(at=self._next(entry, after)), mark)


def _moment(message: Message) -> datetime:
    text = message.headers.get(MOMENT_HEADER)
    return message.sent_at if text is None else datetime.fromisoformat(text)


def _is_lost(schedule: Schedule) -> bool:
    """Whether the only moment of a schedule is long over, and no beat has set the next one."""
    return not schedule.results or schedule.results[0].at < datetime.now(UTC) - LOST


def _word(text: str, most: int = 60) -> str:
    """Text as part of a name, told from others by a sum if it had to be changed."""
    word = _OTHER.sub("-", text)
    if word == text and len(word) <= most:
        return word
    return f"{word[: most - 9]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def _address(app: Any) -> Server:
    """The server: `beat_miniq_url`, else the broker's or the results' if those are MiniQ's."""
    conf = app.conf
    for field in ("beat_miniq_url", "broker_url", "result_backend"):
        given = conf.get(field)
        url = given[0] if isinstance(given, list | tuple) and given else given
        if isinstance(url, str) and (field == "beat_miniq_url" or url.startswith(("miniq:", "miniq+"))):
            try:
                return read_address(url.partition(";")[0], field)
            except InvalidRequest as error:
                raise ImproperlyConfigured(error.text) from None
    raise ImproperlyConfigured("beat_miniq_url: not set, and neither broker_url nor result_backend is MiniQ's")
