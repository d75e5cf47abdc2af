"""Judges a history, after a full drain, in one pass over its events and one over each message's.

I1  no confirmed send is lost, and nothing is handed out that nobody sent, nor one send twice;
I2  leases of one message never overlap, and a receipt is worth nothing once somebody else holds the message;
I3  a confirmed ack never comes back;
I4  of a group one message is in flight at a time, in the order in which they were sent;
I5  `receives` rises with every lease of a message;
I6  what an outside sink holds, and what was acked, is every confirmed send exactly once; a claim that is read again
    holds the same.

It is fair: what was asked for and not answered may have happened or not, at any time after it was asked. A power cut
may end a lease, and undo that it was counted, unless a send was asked for and confirmed after it. It knows nothing of
MiniQ but what its clients were told.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from msgspec import Struct

from tests.faults.history import Event

FOREVER = 2**62


class Violation(Struct, frozen=True):
    invariant: str
    text: str

    def __str__(self) -> str:
        return f"{self.invariant}: {self.text}"


class Verdict(Struct):
    """What was found, and how much there was to look at."""

    violations: list[Violation]
    sent: int
    leases: int
    acked: int
    unknown: int

    @property
    def good(self) -> bool:
        return not self.violations


class _Lease(Struct):
    """One message in one client's hands, by the broker's clock."""

    begins: int
    until: int
    """Until when it runs at the most, extensions included."""
    receives: int
    receipt: str
    once: bool
    asked: int
    """When its receive was asked for, and answered."""
    told: int
    ends: int = FOREVER
    """When somebody with its receipt first asked for something that may end it sooner."""
    counted: bool = True
    """Whether it is certain that a power cut has left it."""
    acked: int = 0
    """When an ack with its receipt was asked for that was then done, and that nothing else can have done."""

    @property
    def end(self) -> int:
        return min(self.until, self.ends)

    def overlaps(self, after: _Lease, left: int = FOREVER) -> bool:
        """Whether both were held at one time, beyond doubt. A lease begins between the moment at which the broker read
        its clock, which on a database may be a while before its turn comes, and the answer. It ends by that clock, or
        when a client that has the receipt asks for it, which may be late, and yet before the other one's turn comes.
        So it may if the message `left` its queue, by an ack of whoever had it next."""
        if self.until <= self.ends:
            return after.begins < self.until and self.told < after.end and after.told < min(self.ends, left)
        return max(self.told, after.told) < min(self.ends, after.end)


class _Message(Struct):
    token: str
    group: str | None = None
    sent_asked: int = 0
    sent_told: int = 0
    """When its send was confirmed, 0 if it never was."""
    acked_at: int = 0
    """When a client was first told that it is acked, 0 if none was."""
    may_be_gone: bool = False
    """An ack was asked for and not answered."""
    by_worker: bool = False
    """Whether it was an ack of a worker that ended it, beyond doubt."""
    endings: list[tuple[int, str]] = []
    """When something was asked for that may have ended it, and with which receipt: an ack, that of its claim, or a
    receive that needs none."""
    claimed: int = FOREVER
    """When a reader was first told that it is in a claim."""
    leases: list[_Lease] = []

    @property
    def ack_asked(self) -> int:
        return min((at for at, _ in self.endings), default=FOREVER)


class Checker:
    """Feed it the events of one history in any order of processes; each client's own are in order."""

    def __init__(self, power_cuts: Sequence[int] = ()) -> None:
        self._power_cuts = power_cuts
        self._found: list[Violation] = []
        self._tokens: dict[str, tuple[str | None, int]] = {}
        self._messages: dict[str, _Message] = {}
        self._ids: dict[str, str] = {}
        self._open: dict[tuple[str, int], Event] = {}
        self._unknown = 0
        self._unknown_once = 0
        """How many messages may have been removed by receives at most once whose answer was lost."""
        self._claims: dict[tuple[str, int], list[str]] = {}
        self._claimed_upto: dict[str, int] = defaultdict(int)
        self._ack_asked_upto: dict[str, int] = defaultdict(int)
        self._sink: Counter[str] | None = None

    def check(self, events: Iterable[Event]) -> Verdict:
        ordered = sorted(events, key=lambda event: event.at)
        for event in ordered:
            if event.type == "invoke":
                self._open[event.client, event.op] = event
                self._asked(event)
            else:
                asked = self._open.pop((event.client, event.op))
                if event.type == "ok":
                    self._answered(asked, event)
                elif event.type == "unknown":
                    self._lost(asked)
                elif event.verb == "ack_claims":
                    self._blame("I6", f"{event.client} was not allowed to ack the claims that it had read")
        for asked in self._open.values():
            self._lost(asked)
        for cut in self._power_cuts:
            self._excuse_leases(cut)
        self._judge()
        messages = self._messages.values()
        return Verdict(
            self._found,
            sum(message.sent_told > 0 for message in messages),
            sum(len(message.leases) for message in messages),
            sum(message.acked_at > 0 for message in messages),
            self._unknown,
        )

    # Listening

    def _asked(self, event: Event) -> None:
        if event.verb == "send":
            for token, group in event.value:
                self._tokens[token] = (group, event.at)
        elif event.verb in ("ack", "release", "extend"):
            for id, receipt in event.value:
                lease = self._lease(id, receipt)
                if lease is not None:
                    lease.ends = min(lease.ends, event.at)
                    if event.verb == "ack":
                        self._messages[id].endings.append((event.at, receipt))
        elif event.verb in ("claim", "ack_claims"):
            group, upto = event.value["group"], event.value.get("after", event.value.get("upto"))
            for number in range(self._ack_asked_upto[group] + 1, upto + 1):
                for id in self._claims.get((group, number), ()):
                    self._messages[id].endings.append((event.at, ""))
            self._ack_asked_upto[group] = max(self._ack_asked_upto[group], upto)

    def _answered(self, asked: Event, event: Event) -> None:
        verb, value = event.verb, event.value
        if verb == "send":
            for (token, group), id in zip(asked.value, value, strict=True):
                message = self._message(id, token, group)
                message.sent_asked, message.sent_told = asked.at, event.at
        elif verb == "receive":
            for id, token, group, receives, receipt, begins, until in value:
                self._handed_out(asked, event, id, token, group, receives, receipt, begins, until)
        elif verb in ("ack", "release", "extend"):
            self._settled(asked, event)
        elif verb == "claim":
            self._claimed(asked, event)
        elif verb == "ack_claims":
            group, upto = asked.value["group"], asked.value["upto"]
            self._claimed_upto[group] = max(self._claimed_upto[group], upto)
        elif verb == "sink":
            self._sink = (self._sink or Counter()) + Counter(value)

    def _handed_out(
        self,
        asked: Event,
        event: Event,
        id: str,
        token: str,
        group: str | None,
        receives: int,
        receipt: str,
        begins: int,
        until: int,
    ) -> None:
        if token not in self._tokens:
            self._blame("I1", f"message {id} was handed out, but nobody sent {token!r}")
            return
        message = self._message(id, token, group)
        if message.acked_at and message.acked_at < asked.at:
            self._blame("I3", f"message {id} was acked, and then handed out again to {event.client}")
        once = bool(asked.value.get("once"))
        message.leases.append(_Lease(begins, FOREVER if once else until, receives, receipt, once, asked.at, event.at))
        if once:
            message.acked_at = message.acked_at or event.at
            message.endings.append((asked.at, ""))

    def _settled(self, asked: Event, event: Event) -> None:
        for (id, receipt), outcome in zip(asked.value, event.value, strict=True):
            message = self._messages.get(id)
            if message is None:
                continue
            lease = self._lease(id, receipt)
            if event.verb == "ack" and outcome == "done":
                message.acked_at = message.acked_at or event.at
                # A client that had to ask twice takes a message that is gone for one that it acked the first time.
                if all(by == receipt for at, by in message.endings if at < event.at):
                    message.by_worker = True
                    if lease is not None:
                        lease.acked = asked.at
            elif event.verb == "ack" and outcome == "stale":
                message.endings = [ending for ending in message.endings if ending != (asked.at, receipt)]
            elif event.verb == "extend":
                said, until = outcome
                if said == "done" and lease is not None:
                    lease.until = until
                    lease.ends = FOREVER

    def _claimed(self, asked: Event, event: Event) -> None:
        group, number = asked.value["group"], event.value["claim"]
        if number is None:
            return
        ids = [id for id, _ in event.value["messages"]]
        before = self._claims.setdefault((group, number), ids)
        if before != ids:
            self._blame("I6", f"claim {number} of {group} held {len(before)} messages, and others when read again")
        for id, token in event.value["messages"]:
            if token not in self._tokens:
                self._blame("I1", f"message {id} was claimed, but nobody sent {token!r}")
                continue
            message = self._message(id, token, self._tokens[token][0])
            message.claimed = min(message.claimed, event.at)

    def _lost(self, asked: Event) -> None:
        """Its answer was lost."""
        self._unknown += 1
        if asked.verb == "ack":
            for id, _ in asked.value:
                if id in self._messages:
                    self._messages[id].may_be_gone = True
        elif asked.verb == "receive" and asked.value.get("once"):
            self._unknown_once += asked.value["max"]

    def _excuse_leases(self, cut: int) -> None:
        """Those that were told before a power cut, and which no confirmed send can have brought to disk by then."""
        messages = self._messages.values()
        covered = max((message.sent_asked for message in messages if 0 < message.sent_told <= cut), default=0)
        for message in messages:
            for lease in message.leases:
                if covered <= lease.told <= cut and not lease.once:
                    lease.ends = min(lease.ends, cut)
                    lease.counted = False

    def _message(self, id: str, token: str, group: str | None) -> _Message:
        message = self._messages.get(id)
        if message is None:
            message = self._messages[id] = _Message(token, group, leases=[], endings=[])
            other = self._ids.setdefault(token, id)
            if other != id:
                self._blame("I1", f"{token!r} was sent once and is there twice, as {other} and as {id}")
        elif message.token != token:
            self._blame("I1", f"message {id} was {message.token!r} and is now {token!r}")
        return message

    def _lease(self, id: str, receipt: str) -> _Lease | None:
        message = self._messages.get(id)
        if message is not None:
            for lease in reversed(message.leases):
                if lease.receipt == receipt:
                    return lease
        return None

    # Judging

    def _judge(self) -> None:
        readings = Counter(
            id for (group, number), ids in self._claims.items() if number <= self._claimed_upto[group] for id in ids
        )
        claimed = set(readings)
        for id, times in readings.items():
            if times > 1:
                self._blame("I6", f"message {id} is in {times} claims that were acked")
            message = self._messages[id]
            if message.by_worker:
                self._blame("I6", f"message {id} is in a claim that was acked, and a worker acked it too")
            if any(lease.asked > message.claimed for lease in message.leases):
                self._blame("I6", f"message {id} was handed out to a worker while it was in a claim")
        missing: list[str] = []
        for id, message in self._messages.items():
            self._judge_leases(id, message)
            kept = self._sink is not None and self._sink[message.token] > 0
            gone = message.acked_at or message.may_be_gone or id in claimed or kept
            if message.sent_told and not gone:
                missing.append(id)
        if len(missing) > self._unknown_once:
            some = ", ".join(missing[:3])
            self._blame("I1", f"{len(missing)} confirmed sends were never seen again, such as {some}")
        groups: dict[str, list[tuple[str, _Message]]] = defaultdict(list)
        for id, message in self._messages.items():
            if message.group is not None:
                groups[message.group].append((id, message))
        for group, members in groups.items():
            self._judge_group(group, members)
        if self._sink is not None:
            self._judge_sink(claimed)

    def _judge_leases(self, id: str, message: _Message) -> None:
        leases = sorted(message.leases, key=lambda lease: (lease.begins, lease.receives))
        for before, after in itertools.pairwise(leases):
            if before.overlaps(after):
                early = (before.end - after.begins) / 1e6
                self._blame("I2", f"message {id} was handed out {early:.3f} s before its lease was over")
            if after.counted and after.told < before.acked:
                self._blame("I2", f"message {id} was acked with a receipt after somebody else had it")
        receives = 0
        for lease in leases:
            if lease.receives <= receives:
                self._blame("I5", f"message {id} was handed out as number {receives}, then as {lease.receives}")
            if lease.counted:
                receives = lease.receives

    def _judge_group(self, group: str, members: list[tuple[str, _Message]]) -> None:
        flights = sorted(
            ((lease, id, message) for id, message in members for lease in message.leases),
            key=lambda flight: flight[0].begins,
        )
        for (lease, id, message), (after, other, _) in itertools.pairwise(flights):
            if id != other and lease.overlaps(after, message.ack_asked):
                self._blame("I4", f"two of group {group!r} were in flight: {id} and {other}")
        # One that was confirmed before another was even sent is over before that one is handed out.
        ordered = sorted((pair for pair in members if pair[1].sent_told), key=lambda pair: pair[1].sent_told)
        for place, (id, message) in enumerate(ordered):
            if message.may_be_gone or (self._unknown_once and not message.acked_at):
                continue
            for other, later in ordered[place + 1 : place + 20]:
                if later.sent_asked <= message.sent_told or not later.leases:
                    continue
                if min(lease.told for lease in later.leases) < message.ack_asked:
                    self._blame("I4", f"of group {group!r} {other} was handed out before {id}, which was sent first")
                    break

    def _judge_sink(self, claimed: set[str]) -> None:
        assert self._sink is not None
        for token, times in self._sink.items():
            if times > 1:
                self._blame("I6", f"{token!r} is {times} times in the sink")
            if token not in self._tokens:
                self._blame("I6", f"{token!r} is in the sink, but nobody sent it")
        for id, message in self._messages.items():
            there = self._sink[message.token] > 0
            if there and message.by_worker and id not in claimed:
                self._blame("I6", f"message {id} is in the sink, and a worker acked it too")
            if message.sent_told and not there and not message.acked_at and not message.may_be_gone:
                self._blame("I6", f"message {id} was sent, and is neither in the sink nor acked by a worker")

    def _blame(self, invariant: str, text: str) -> None:
        self._found.append(Violation(invariant, text))


def check(events: Iterable[Event], power_cuts: Sequence[int] = ()) -> Verdict:
    """The verdict on a history that ends with a full drain. Moments at which the power was off are given in order."""
    return Checker(power_cuts).check(events)
