"""What all stores decide in the same way."""

from __future__ import annotations

import pytest

from miniq.batch import Claim, ClaimGroup, StageName
from miniq.errors import ClaimGone, ClaimUnknown, Fenced, QueueFull, StageUnknown
from miniq.message import NEVER, DeadLetter, Message, Outcome, Stored
from miniq.store.arguments import ANY, FREE, Batch, Change, Edit, Fit, NextClaim, Put, Room
from miniq.store.decisions import (
    Budget,
    ClaimPlan,
    StagePart,
    check_listed,
    check_room,
    ended,
    fence,
    plan_claim,
    sift,
    stage_of,
    stretches,
)

FIT = Fit(0, 3)


@pytest.mark.parametrize(
    ("visible_at", "held_by", "receipt", "outcome"),
    [
        (20, "a", "a", "done"),
        (5, "a", "a", "done"),
        (20, "a", "b", "stale"),
        (20, "a", FREE, "leased"),
        (10, "a", FREE, "done"),
        (20, None, FREE, "done"),
        (20, None, "a", "stale"),
        (20, "a", ANY, "done"),
        (NEVER, "g/1", ANY, "leased"),
        (NEVER, "g/1", "g/1", "leased"),
    ],
)
def test_a_fence_holds_for_the_last_receipt_and_what_is_free_is_not_leased(
    visible_at: int, held_by: str | None, receipt: str, outcome: Outcome
) -> None:
    assert fence(visible_at, held_by, receipt, 10) == outcome


def test_a_message_is_refused_for_its_ttl_then_its_age_then_its_receives() -> None:
    fit = Fit(100, 2)
    message = Message("i", "q", 100, 100, b"1", expires_at=200)
    assert fit.refusal(message, 2, 200) == "ttl"
    assert fit.refusal(message, 2, 199) == "retention"
    dead = Message("i", "q", 1, 1, b"1", dead=DeadLetter("q", "r", 1, 101))
    assert fit.refusal(dead, 2, 199) == "max_receives"
    assert fit.refusal(dead, 1, 199) is None


def test_many_messages_are_let_through_at_a_glance_only_if_none_would_be_refused() -> None:
    fit = Fit(100, 2)
    plain, old = Message("i", "q", 101, 101, b"1"), Message("i", "q", 100, 100, b"1")
    assert fit.allows_taken([Stored(plain, 0, 2)])
    assert not fit.allows_taken([Stored(plain, 0, 2), Stored(plain, 0, 3)])
    assert not fit.allows_taken([Stored(old, 0, 1)])
    assert fit.allows_plain(101, 1)
    assert not fit.allows_plain(101, 2)
    assert not fit.allows_plain(100, 0)


def asked(after: int, limit: int = 1, epoch: int | None = None) -> NextClaim:
    return NextClaim(after=after, now=0, keep_until=0, fit=FIT, limit=limit, epoch=epoch)


def test_a_plan_acks_then_gives_or_makes() -> None:
    state, second = ClaimGroup("g", 4, 0, 2), Claim(2, 1, 1, 0)
    assert plan_claim(state, second, asked(1)) == ClaimPlan(range(1, 2), second, False)
    assert plan_claim(state, None, asked(2, epoch=4)) == ClaimPlan(range(1, 3), None, True)
    assert plan_claim(state, None, asked(1, limit=0)) == ClaimPlan(range(1, 2), None, False)
    assert not plan_claim(ClaimGroup("g", 4, 2, 2), None, asked(1, limit=0)).ack


@pytest.mark.parametrize(
    ("call", "error"), [(asked(3), ClaimUnknown), (asked(1), ClaimGone), (asked(2, epoch=3), Fenced)]
)
def test_a_plan_refuses_strangers_claims_that_were_never_made_and_those_that_are_gone(
    call: NextClaim, error: type[Exception]
) -> None:
    with pytest.raises(error):
        plan_claim(ClaimGroup("g", 4, 0, 2), None, call)


def test_the_numbers_of_claims_that_are_over_stay_used() -> None:
    assert ended(ClaimGroup("g", 4, 0, 2, [Claim(2, 1, 1, 0)])) == ClaimGroup("g", 4, 2, 2)


def test_a_budget_admits_the_first_and_stops_before_it_is_passed() -> None:
    budget = Budget(3, 10)
    assert [budget.admits(size) for size in (12, 1)] == [True, False]
    budget = Budget(2, 10)
    assert [budget.admits(size) for size in (5, 5, 0)] == [True, True, False]


def test_a_queue_is_full_by_messages_or_bytes_but_nothing_always_fits() -> None:
    check_room(None, "q", (9, 9), (9, 9))
    check_room(Room(10, 10), "q", (9, 9), (1, 1))
    check_room(Room(1, 1), "q", (9, 9), (0, 0))
    with pytest.raises(QueueFull, match="max_length: queue 'q' holds 9 of at most 10 messages, no room for 2 more"):
        check_room(Room(10, 0), "q", (9, 9), (2, 2))
    with pytest.raises(QueueFull, match="max_bytes: queue 'q' holds 9 of at most 10 bytes, no room for 2 more"):
        check_room(Room(0, 10), "q", (9, 9), (1, 2))


def message(id: str, dedup_id: str | None = None, **fields: int) -> Message:
    return Message(id, "q", 0, fields.pop("due_at", 0), b"12", dedup_id=dedup_id, **fields)  # type: ignore[arg-type]


def test_dedup_ids_count_from_the_records_and_from_the_same_call() -> None:
    sifted = sift([message("1", "a"), message("2", "a"), message("3", "old"), message("4")], {"old": "0"}.get)
    assert [kept.id for kept in sifted.fresh] == ["1", "4"]
    assert sifted.ids == ["1", "1", "0", "4"]
    assert sifted.brought == {"a": "1"}


def test_a_stage_is_the_sum_of_its_parts_and_lasts_as_long_as_the_last() -> None:
    stage = stage_of(StageName("j", "b", "0", "0"), [StagePart(2, 4, 2, 5, 50), StagePart(1, 2, 0, 3, 30)])
    assert (stage.parts, stage.messages, stage.bytes, stage.alone) == (2, 3, 6, 2)
    assert (stage.made_at, stage.until) == (3, 50)


def test_all_stages_of_a_commit_must_be_there_and_not_over() -> None:
    batch = Batch("j", "b", [("0", "a"), ("1", "a")], lambda count: "", Put(now=10), 100)
    check_listed(batch, {("0", "a"): 11, ("1", "a"): 11})
    for until in ({("0", "a"): 11}, {("0", "a"): 11, ("1", "a"): 10}):
        with pytest.raises(StageUnknown, match="no attempt 'a' of partition '1' of batch 'b' of job 'j'"):
            check_listed(batch, until)


def test_a_part_is_cut_where_priority_or_due_time_changes_and_around_what_stands_alone() -> None:
    part = [message("")] * 3 + [message("", priority=1)] + [message("", due_at=5)] + [message("", "d")] * 2
    assert stretches(part) == [range(3), range(3, 4), range(4, 5), range(5, 6), range(6, 7)]
    assert stretches([message("")] * 130) == [range(128), range(128, 130)]
    assert stretches([]) == []


def test_an_edit_changes_what_it_names_and_keeps_everything_else() -> None:
    whole = Message("i", "q", 1, 2, b"3", "a/b", 4, {"h": "5"}, 6, "7", "8", "9", "10", DeadLetter("q", "r", 1, 2))
    assert Edit().apply(whole) == whole
    edited = Edit(body=b"", content_type="c/d", headers={}, priority=0, due_at=0).apply(whole)
    assert (edited.body, edited.content_type, edited.headers, edited.priority, edited.due_at) == (b"", "c/d", {}, 0, 0)
    assert (edited.id, edited.expires_at, edited.key, edited.dead) == ("i", 6, "7", whole.dead)


def test_nothing_is_told_where_history_is_off_or_nothing_happens() -> None:
    assert Change(1, "events", "acked").recorded == "acked"
    assert Change(1, "off", "acked").recorded is None
    assert Change(1, "full").recorded is None
