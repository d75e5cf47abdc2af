"""Plain sends over HTTP that one turn of the event loop has read: looked at together, sent together, answered together.

Much of the work is the same for all of them: which queue they are for, who may send to it, how an answer begins. It is
done once for those that say the same in their headers, as most do.
"""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING

from miniq.api import codec, shapes
from miniq.api.codec import MSGPACK
from miniq.api.plain import PLAIN, TYPES
from miniq.broker import Broker
from miniq.broker.gather import Sent
from miniq.message import JSON, PlainDrafts
from miniq.server.busy_poll import BusyPoll

if TYPE_CHECKING:
    from miniq.server.http.fast_lane import HotCycle
    from miniq.server.http.request_head import Head

_JSON, _MSGPACK = JSON.encode(), MSGPACK.encode()


class _Lot:
    """Messages for one queue, in one format."""

    __slots__ = ("bodies", "read")

    def __init__(self) -> None:
        self.read: list[tuple[HotCycle, bytes]] = []
        self.bodies: list[bytes] = []


class Together:
    """The sends of all connections of a broker."""

    def __init__(self, broker: Broker, busy_poll: BusyPoll) -> None:
        self._broker = broker
        self._awake = busy_poll
        self._read: list[tuple[HotCycle, bytes]] = []
        self.sent: Sent = self._answer
        """Answers those whose messages were sent beside others."""

    def add(self, hot: HotCycle, raw: bytes) -> None:
        """A request is there as a whole that may send one plain message; at the end of this turn it is looked at."""
        if not self._read:
            hot.lane.loop.call_soon(self._look)
        self._read.append((hot, raw))

    def _look(self) -> None:
        read, self._read = self._read, []
        lots: dict[tuple[str, codec.Format], _Lot] = {}
        head: Head | None = None
        self._awake.asked(read[0][0].lane if len(read) == 1 else None)
        for one in read:
            hot, raw = one
            try:
                if hot.head is not head:
                    head = hot.head
                    problem = self._judge(head)
                    plain = PLAIN[head.format]
                    lot = lots.setdefault((head.queue, head.format), _Lot())
                if problem is not None:
                    hot.lane.refuse(hot, problem)
                elif (body := plain(raw)) is None:
                    hot.lane.call(hot, raw)
                else:
                    lot.read.append(one)
                    lot.bodies.append(body)
            except Exception as error:  # the others are to be answered all the same
                hot.lane.refuse(hot, error)
        for (queue, format), lot in lots.items():
            if lot.read:
                self._send(queue, lot, format)

    def _send(self, queue: str, lot: _Lot, format: codec.Format) -> None:
        hots = [hot for hot, _ in lot.read]
        calls = [hot.head.call for hot in hots]
        bodies = PlainDrafts(lot.bodies, TYPES[format])
        try:
            if not self._broker.send_coalesced(queue, bodies, calls, hots, self.sent, at_once=True):
                for hot, raw in lot.read:
                    hot.lane.call(hot, raw)
        except Exception as error:
            for hot in hots:
                hot.lane.refuse(hot, error)

    def _judge(self, head: Head) -> Exception | None:
        """Why requests with these headers are refused, None if they are not."""
        try:
            head.admit(self._broker)
        except Exception as error:
            return error
        return None

    def _answer(self, hots: list[HotCycle], answers: list[list[str]], error: Exception | None) -> None:
        """Answer those whose messages are on disk, or could not be sent."""
        if error is not None:
            for hot in hots:
                hot.lane.refuse(hot, error)
            return
        now = perf_counter()
        latency = self._broker.metrics.latency("http", "send", hots[0].head.queue)
        latency.add_all([now - hot.began for hot in hots])
        beginning = hots[0].lane.beginning
        ways = {
            "json": (beginning(201, _JSON), codec.encode_json),
            "msgpack": (beginning(201, _MSGPACK), codec.encode_msgpack),
        }
        for hot, ids in zip(hots, answers, strict=True):
            head, encode = ways[hot.head.out]
            hot.lane.write(hot, 201, head, encode(shapes.SentReply(ids)))
        if len(hots) == 1:
            self._awake.answered(hots[0].lane)
