"""The checker itself: it finds each kind of wrong in a history, and nothing in one that is right."""

from __future__ import annotations

import os
from typing import Any

import pytest

from tests.faults import history
from tests.faults.checker import Verdict, check
from tests.faults.history import Event, Recorder, Type, Verb

S = 1_000_000


class Story:
    """Events one after the other; the clock moves on by a second with each."""

    def __init__(self) -> None:
        self.now = 0
        self.ops = 0
        self.events: list[Event] = []
        self.cuts: list[int] = []

    def say(self, type: Type, verb: Verb, value: Any, op: int) -> None:
        self.now += S
        self.events.append(Event(self.now, "c", op, type, verb, value))

    def do(self, verb: Verb, asked: Any, told: Any = None, end: Type | None = "ok") -> None:
        self.ops += 1
        op = self.ops
        self.say("invoke", verb, asked, op)
        if end is not None:
            self.say(end, verb, told, op)

    def send(self, *tokens: str, group: str | None = None, end: Type | None = "ok") -> None:
        self.do("send", [[token, group] for token in tokens], [f"id-{token}" for token in tokens], end)

    def receive(
        self, token: str, receives: int = 1, seconds: int = 30, group: str | None = None, once: bool = False
    ) -> None:
        begins = self.now + S
        lease = [f"id-{token}", token, group, receives, f"r{token}{receives}", begins, begins + seconds * S]
        self.do("receive", {"max": 1, "once": once}, [lease])

    def ack(self, token: str, receives: int = 1, outcome: str = "done", end: Type | None = "ok") -> None:
        self.do("ack", [[f"id-{token}", f"r{token}{receives}"]], [outcome], end)

    def release(self, token: str, receives: int = 1) -> None:
        self.do("release", [[f"id-{token}", f"r{token}{receives}"]], ["done"])

    def cut_power(self) -> None:
        self.now += S
        self.cuts.append(self.now)

    def verdict(self) -> Verdict:
        return check(self.events, self.cuts)

    def broken(self) -> set[str]:
        return {violation.invariant for violation in self.verdict().violations}


@pytest.fixture
def story() -> Story:
    return Story()


def test_a_life_as_it_should_be(story: Story) -> None:
    story.send("a", "b")
    story.receive("a", seconds=2)
    story.now += 5 * S
    story.receive("a", receives=2)
    story.release("a", receives=2)
    story.receive("a", receives=3)
    story.ack("a", receives=3)
    story.ack("a", receives=3, outcome="missing")
    story.receive("b", once=True)
    verdict = story.verdict()
    assert verdict.good, verdict.violations
    assert (verdict.sent, verdict.leases, verdict.acked, verdict.unknown) == (2, 4, 2, 0)


def test_a_confirmed_send_that_never_comes_back_is_lost(story: Story) -> None:
    story.send("a")
    assert story.broken() == {"I1"}


def test_a_message_that_vanished_from_its_holder_is_lost(story: Story) -> None:
    story.send("a")
    story.receive("a")
    story.ack("a", outcome="missing")
    assert story.broken() == {"I1"}


@pytest.mark.parametrize("end", ["unknown", None])
def test_what_was_not_answered_may_have_happened_or_not(story: Story, end: Type | None) -> None:
    story.send("a", end=end)
    story.send("b", end=end)
    story.receive("b")
    story.ack("b", end=end)
    verdict = story.verdict()
    assert verdict.good, verdict.violations
    assert verdict.unknown == 3


def test_a_receive_at_most_once_whose_answer_was_lost_excuses_as_many_as_it_asked_for(story: Story) -> None:
    story.send("a", "b", "c")
    story.do("receive", {"max": 2, "once": True}, end="unknown")
    assert story.broken() == {"I1"}
    story.receive("a")
    story.ack("a")
    assert story.verdict().good


def test_what_nobody_sent_is_invented(story: Story) -> None:
    story.receive("ghost")
    assert story.broken() == {"I1"}


def test_one_send_that_is_there_twice_is_told(story: Story) -> None:
    story.send("a")
    story.receive("a")
    story.ack("a")
    begins = story.now + S
    story.do("receive", {"max": 1}, [["id-other", "a", None, 1, "x", begins, begins + S]])
    assert "I1" in story.broken()


def test_leases_that_overlap_are_told(story: Story) -> None:
    story.send("a")
    story.receive("a", seconds=60)
    story.receive("a", receives=2, seconds=60)
    story.ack("a", receives=2)
    assert story.broken() == {"I2"}


def test_an_ack_that_counts_after_somebody_else_has_the_message_is_told(story: Story) -> None:
    story.send("a")
    story.receive("a", seconds=1)
    story.now += 5 * S
    story.receive("a", receives=2)
    story.ack("a", receives=1)
    story.ack("a", receives=2)
    assert story.broken() == {"I2"}


def test_a_client_may_take_an_ack_of_somebody_else_for_its_own(story: Story) -> None:
    """It had to ask twice, and the message was gone by then."""
    story.send("a")
    story.receive("a", seconds=1)
    story.now += 5 * S
    story.receive("a", receives=2)
    story.ack("a", receives=2)
    story.ack("a", receives=1)
    assert story.verdict().good


def test_a_message_that_is_handed_out_while_it_is_in_a_claim_is_told(story: Story) -> None:
    story.send("a")
    story.do("claim", {"group": "g", "after": 0}, {"claim": 1, "messages": [["id-a", "a"]]})
    story.receive("a")
    story.do("ack_claims", {"group": "g", "upto": 1})
    assert story.broken() == {"I6"}


def test_a_stale_ack_is_not_taken_for_the_one_that_counted(story: Story) -> None:
    story.send("a")
    story.receive("a", seconds=1)
    story.now += 5 * S
    story.receive("a", receives=2)
    story.ack("a", receives=1, outcome="stale")
    story.ack("a", receives=2)
    story.do("claim", {"group": "g", "after": 0}, {"claim": 1, "messages": [["id-a", "a"]]})
    story.do("ack_claims", {"group": "g", "upto": 1})
    assert story.broken() == {"I6"}


def test_a_receipt_may_hold_until_somebody_else_has_the_message(story: Story) -> None:
    story.send("a")
    story.receive("a", seconds=1)
    story.release("a", receives=1)
    story.receive("a", receives=2)
    story.do("ack", [["id-a", "ra1"]], ["stale"])
    story.ack("a", receives=2)
    assert story.verdict().good


def test_a_lease_that_was_extended_runs_longer(story: Story) -> None:
    story.send("a")
    story.receive("a", seconds=5)
    story.do("extend", [["id-a", "ra1"]], [["done", story.now + 100 * S]])
    story.now += 10 * S
    story.receive("a", receives=2)
    story.ack("a", receives=2)
    assert story.broken() == {"I2"}


def test_a_release_that_was_not_answered_may_have_ended_a_lease(story: Story) -> None:
    story.send("a")
    story.receive("a", seconds=600)
    story.do("release", [["id-a", "ra1"]], end=None)
    story.receive("a", receives=2)
    story.ack("a", receives=2)
    assert story.verdict().good


def test_an_ack_that_comes_back_is_told(story: Story) -> None:
    story.send("a")
    story.receive("a")
    story.ack("a")
    story.receive("a", receives=2)
    assert story.broken() == {"I3"}


def test_a_late_answer_is_no_ack_that_came_back(story: Story) -> None:
    """The receive was asked for before the ack was confirmed: its answer only took longer."""
    story.send("a")
    story.receive("a", seconds=1)
    story.now += 3 * S
    begins = story.now + S
    story.ops += 1
    story.say("invoke", "receive", {"max": 1}, story.ops)
    slow = story.ops
    story.now += 10 * S
    story.do("ack", [["id-a", "ra1"]], ["stale"])
    story.say("ok", "receive", [["id-a", "a", None, 2, "ra2", begins, begins + 60 * S]], slow)
    story.ack("a", receives=2)
    assert story.verdict().good


def test_receives_that_fall_are_told(story: Story) -> None:
    story.send("a")
    story.receive("a", receives=2, seconds=1)
    story.now += 5 * S
    story.receive("a", receives=1, seconds=1)
    story.ack("a", receives=1)
    assert story.broken() == {"I5"}


def test_a_power_cut_may_undo_a_lease_that_nothing_confirmed_came_after(story: Story) -> None:
    story.send("a")
    story.receive("a", receives=1)
    story.release("a", receives=1)
    story.receive("a", receives=2)
    story.cut_power()
    story.receive("a", receives=2)
    story.ack("a", receives=2)
    assert story.verdict().good


def test_a_power_cut_is_no_excuse_for_a_lease_that_a_confirmed_send_came_after(story: Story) -> None:
    story.send("a")
    story.receive("a")
    story.send("b")
    story.cut_power()
    story.receive("a")
    story.ack("a")
    story.receive("b")
    story.ack("b")
    assert story.broken() == {"I2", "I5"}


def test_a_power_cut_is_no_excuse_for_receives_that_were_counted_before(story: Story) -> None:
    story.send("a")
    story.receive("a", receives=1)
    story.release("a", receives=1)
    story.send("b")
    story.receive("a", receives=2)
    story.cut_power()
    story.receive("a", receives=1)
    story.ack("a")
    story.receive("b")
    story.ack("b")
    assert story.broken() == {"I5"}


def test_two_of_a_group_in_flight_are_told(story: Story) -> None:
    story.send("a", "b", group="g")
    story.receive("a", group="g", seconds=600)
    story.receive("b", group="g", seconds=600)
    story.ack("a")
    story.ack("b")
    assert story.broken() == {"I4"}


def test_a_take_that_waited_for_its_turn_has_not_begun_when_it_was_asked_for(story: Story) -> None:
    """On a database its clock was read before the ack that it waited for; it is handed out after it."""
    story.send("a", "b", group="g")
    story.receive("a", group="g", seconds=600)
    story.say("invoke", "receive", {"max": 1, "once": False}, 100)
    begins = story.now
    story.ack("a")
    story.say("ok", "receive", [["id-b", "b", "g", 1, "rb1", begins, begins + 600 * S]], 100)
    story.ack("b")
    assert story.broken() == set()


@pytest.mark.parametrize("settled", [True, False])
def test_a_receive_that_read_the_clock_before_a_lease_ended_may_get_the_next_once_a_late_ack_is_asked_for(
    story: Story, settled: bool
) -> None:
    story.send("a", "b", group="g")
    story.receive("a", group="g", seconds=4)
    begins = story.now + S  # the broker reads its clock, and the database takes its time
    asked, late = {"max": 1, "once": False}, [["id-a", "ra1"]]
    lease = ["id-b", "b", "g", 1, "rb1", begins, begins + 600 * S]
    story.say("invoke", "receive", asked, 90)
    story.now += 3 * S
    if settled:
        story.say("invoke", "ack", late, 91)
        story.say("ok", "receive", [lease], 90)
    else:
        story.say("ok", "receive", [lease], 90)
        story.say("invoke", "ack", late, 91)
    story.say("ok", "ack", ["done"], 91)
    story.ack("b")
    assert story.broken() == (set() if settled else {"I4"})


def test_a_receive_that_read_the_clock_before_a_lease_ended_may_get_the_next_once_another_holder_acked(
    story: Story,
) -> None:
    """The lease of the first ends, it is handed out again and acked, and only then the turn of the receive comes."""
    story.send("a", "b", group="g")
    story.receive("a", group="g", seconds=4)
    begins = story.now + S
    story.say("invoke", "receive", {"max": 1, "once": False}, 90)
    story.now += 4 * S
    story.receive("a", group="g", receives=2)
    story.ack("a", receives=2)
    story.say("ok", "receive", [["id-b", "b", "g", 1, "rb1", begins, begins + 600 * S]], 90)
    story.ack("b")
    assert story.broken() == set()


def test_a_message_that_was_handed_out_again_and_not_acked_still_blocks_its_group(story: Story) -> None:
    story.send("a", "b", group="g")
    story.receive("a", group="g", seconds=4)
    begins = story.now + S
    story.say("invoke", "receive", {"max": 1, "once": False}, 90)
    story.now += 4 * S
    story.receive("a", group="g", receives=2)
    story.say("ok", "receive", [["id-b", "b", "g", 1, "rb1", begins, begins + 600 * S]], 90)
    story.ack("a", receives=2)
    story.ack("b")
    assert story.broken() == {"I4"}


def test_a_group_out_of_order_is_told(story: Story) -> None:
    story.send("a", group="g")
    story.send("b", group="g")
    story.receive("b", group="g")
    story.ack("b")
    story.receive("a", group="g")
    story.ack("a")
    assert story.broken() == {"I4"}


def test_a_group_in_order_is_right_also_when_one_comes_back(story: Story) -> None:
    story.send("a", group="g")
    story.send("b", group="g")
    story.receive("a", group="g")
    story.release("a")
    story.receive("a", receives=2, group="g")
    story.ack("a", receives=2)
    story.receive("b", group="g")
    story.ack("b")
    assert story.verdict().good


def claim(story: Story, number: int | None, *tokens: str) -> None:
    messages = [[f"id-{token}", token] for token in tokens]
    story.do("claim", {"group": "spark", "after": 0}, {"claim": number, "messages": messages})


def test_a_sink_that_holds_every_message_once_is_right(story: Story) -> None:
    story.send("a", "b", "c")
    claim(story, 1, "a", "b")
    claim(story, 1, "a", "b")
    story.do("ack_claims", {"group": "spark", "upto": 1})
    claim(story, None)
    story.receive("c")
    story.ack("c")
    story.do("sink", None, ["a", "b"])
    assert story.verdict().good, story.verdict().violations


@pytest.mark.parametrize("sink", [["a", "b", "b"], ["a"], ["a", "b", "ghost"], ["a", "b", "c"]])
def test_a_sink_that_has_too_much_or_too_little_is_told(story: Story, sink: list[str]) -> None:
    story.send("a", "b", "c")
    claim(story, 1, "a", "b")
    story.do("ack_claims", {"group": "spark", "upto": 1})
    story.receive("c")
    story.ack("c")
    story.do("sink", None, sink)
    assert story.broken() == {"I6"}


def test_a_claim_that_changes_is_told(story: Story) -> None:
    story.send("a", "b")
    claim(story, 1, "a")
    claim(story, 1, "a", "b")
    story.do("ack_claims", {"group": "spark", "upto": 1})
    story.receive("b")
    story.ack("b")
    assert story.broken() == {"I6"}


def test_a_claim_that_was_read_and_cannot_be_acked_is_told(story: Story) -> None:
    story.send("a")
    story.do("claim", {"group": "g", "after": 0}, {"claim": 1, "messages": [["id-a", "a"]]})
    story.do("ack_claims", {"group": "g", "upto": 1}, end="fail")
    story.receive("a")
    story.ack("a")
    assert story.broken() == {"I6"}


def test_a_history_is_read_back_as_it_was_written_but_for_a_torn_end() -> None:
    ours, theirs = os.pipe()
    recorder = Recorder(theirs)
    recorder.invoke("c", "send", [["a", None]]).ok(["id-a"])
    recorder.invoke("c", "receive", {"max": 1}).unknown()
    os.write(theirs, b'{"at": 1, "cli')
    os.close(theirs)
    text = os.read(ours, 10**6)
    os.close(ours)
    events = list(history.read(text))
    assert [(event.op, event.type, event.verb) for event in events] == [
        (1, "invoke", "send"),
        (1, "ok", "send"),
        (2, "invoke", "receive"),
        (2, "unknown", "receive"),
    ]
    assert events[1].value == ["id-a"]
