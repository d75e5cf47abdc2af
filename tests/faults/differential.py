"""`python -m tests.faults differential [--sequences N] [--seed N] [--only N]`: the same requests in several ways.

A random sequence of requests is sent to a fresh broker one request per connection, each in one piece. Then it is sent
to other fresh brokers pipelined on one connection, in pieces, one after the other on one connection, and in a form that
the fast lane leaves to the ordinary one. Answers and the broker's state afterwards must be the same every time.

After a request that ends its connection (bad framing, `Connection: close`) nothing more may be answered or carried out;
everything before it is answered, in order. Ids, receipts, keys and time are predictable, so nothing is normalised but
the request ids that the broker makes up, and the date.

A difference is shrunk and printed as raw bytes.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import logging
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from random import Random

from msgspec import Struct
from msgspec.structs import replace

from tests.faults import http_requests
from tests.faults.http_replay import IGNORED, Outcome, Way, pieces_of, replay
from tests.faults.http_requests import Asked

PLAIN = Way("one request per connection")
ALWAYS = [Way("pipelined in pieces", "one", True), Way("in the ordinary lane", slow=True)]
OTHERS = [
    Way("pipelined at once", "one"),
    Way("one after the other on one connection", "turns"),
    Way("one request per connection in pieces", pieces=True),
    Way("pipelined in the ordinary lane", "one", True, True),
    Way("one after the other in pieces", "turns", True),
]


PART = 250
"""Sequences that a process tries at a time."""


class Difference(Struct):
    way: Way
    keyed: bool
    asked: list[Asked]
    kind: str
    """What differs, and for which request, without details: two sequences with the same kind show the same defect."""
    text: str

    def __str__(self) -> str:
        pieces = "\n".join(f"    {_shown(piece)}" for piece in pieces_of(self.asked, self.way))
        keys = "with keys" if self.keyed else "without keys"
        return f"{self.kind}\n  {self.way.name}, {keys}:\n{pieces}\n  {self.text}"


def _shown(piece: bytes) -> str:
    """A piece as an expression; what is repeated in it is written once."""
    return re.sub(r"(.)\1{59,}", lambda run: f"' + b'{run[1]}' * {len(run[0])} + b'", repr(piece))


# Comparing


def compare(asked: Sequence[Asked], plain: Outcome, other: Outcome, way: Way, keyed: bool) -> Difference | None:
    """The first difference between two outcomes of a sequence."""

    def differ(kind: str, text: str) -> Difference:
        return Difference(way, keyed, list(asked), kind, text)

    for number, (expected, got) in enumerate(itertools.zip_longest(plain.answers, other.answers)):
        is_early = number < len(asked) and asked[number].early and expected and got and got.status // 100 == 4
        if not is_early and (expected is None or got is None or expected.key != got.key):
            label = asked[number].label if number < len(asked) else "the end"
            kind = f"{label}: {expected.status if expected else 'no answer'} and {got.status if got else 'no answer'}"
            if expected and got and expected.status == got.status:
                names = sorted({name.decode() for name, _ in set(expected.headers) ^ set(got.headers)})
                kind = f"{label}: another body" if expected.body != got.body else f"other headers: {', '.join(names)}"
            return differ(kind, f"plain: {expected}\n  other: {got}" + (f"\n  {other.wrong}" if other.wrong else ""))
    if other.wrong:
        return differ(re.sub(r"\d+", "N", other.wrong[:80]), other.wrong)
    if plain.closed != other.closed:
        last = asked[len(plain.answers) - 1].label
        return differ(f"{last}: connection closed: {plain.closed} and {other.closed}", "")
    if plain.state != other.state:
        lines = [f"- {line}" for line in plain.state if line not in other.state]
        lines += [f"+ {line}" for line in other.state if line not in plain.state]
        label = asked[len(plain.answers) - 1].label if plain.closed else "all answered"
        return differ(f"the state differs; {label}", "\n  ".join(lines))
    return None


async def check(asked: Sequence[Asked], keyed: bool, ways: Sequence[Way]) -> Difference | None:
    """The first difference that a sequence shows."""
    plain = await replay(asked, keyed, PLAIN)
    if plain.wrong:
        return Difference(PLAIN, keyed, list(asked), plain.wrong[:100], "\n  ".join(map(str, plain.answers)))
    for way in ways:
        difference = compare(asked, plain, await replay(asked, keyed, way), way, keyed)
        if difference is not None:
            return difference
    return None


async def shrink(found: Difference) -> Difference:
    """The shortest sequence that still shows a difference of the same kind."""
    smaller = True
    while smaller:
        smaller = False
        for asked, keyed in _smaller(found.asked, found.keyed):
            seen = await check(asked, keyed, [] if found.way == PLAIN else [found.way])
            if seen is not None and seen.kind == found.kind:
                found, smaller = seen, True
                break
    return found


def _smaller(asked: list[Asked], keyed: bool) -> Iterator[tuple[list[Asked], bool]]:
    """Sequences that are a little smaller."""
    if keyed:
        yield asked, False
    for number, one in enumerate(asked):
        before, after = asked[:number], asked[number + 1 :]
        if before or after:
            yield [*before, *after], keyed
        headers, cuts = one.headers, one.cuts
        made = [replace(one, headers=headers[:at] + headers[at + 1 :]) for at in range(one.needed, len(headers))]
        if cuts:
            half = len(cuts) // 2
            fewer = [(), cuts[:half], cuts[half:], cuts[1:], cuts[:-1]] if half else [()]
            made += [replace(one, cuts=left) for left in fewer]
        for simpler in made:
            yield [*before, simpler, *after], keyed


# Many


async def search(seed: int, numbers: range) -> list[Difference]:
    """All differences of these sequences of a seed; one of each kind is shrunk."""
    found: list[Difference] = []
    for number in numbers:
        chance = Random(f"{seed}-{number}")
        keyed = chance.random() < 0.5
        asked = http_requests.sequence(chance, keyed)
        difference = await check(asked, keyed, [*ALWAYS, chance.choice(OTHERS)])
        if difference is None:
            continue
        if difference.kind not in [other.kind for other in found]:
            difference = await shrink(difference)
            difference.text += f"\n  again: python -m tests.faults differential --seed {seed} --only {number}"
        found.append(difference)
    return found


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults differential")
    parser.add_argument("--sequences", type=int, default=20_000, help="how many (20000)")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="the same seed makes the same sequences")
    parser.add_argument("--only", type=int, metavar="NUMBER", help="one sequence of the seed")
    parser.add_argument("--ignore", action="append", default=[], metavar="HEADER", help="do not compare this header")
    parser.add_argument("--jobs", type=int, default=2, help="processes (2)")
    asked = parser.parse_args(arguments)
    numbers = range(asked.sequences) if asked.only is None else range(asked.only, asked.only + 1)
    parts = [numbers[start : start + PART] for start in range(0, len(numbers), PART)]
    seen: Counter[str] = Counter()
    began = time.monotonic()
    with ProcessPoolExecutor(asked.jobs, get_context("spawn")) as pool:
        for part, found in zip(parts, pool.map(partial(_search, asked.seed, asked.ignore), parts), strict=True):
            for difference in found:
                seen[difference.kind] += 1
                if seen[difference.kind] == 1:
                    print(f"\n{difference}", flush=True)
            print(f"{part.stop} of {len(numbers)} sequences, {seen.total()} differ", file=sys.stderr, flush=True)
    seconds = time.monotonic() - began
    print(f"\nseed {asked.seed}: {len(numbers)} sequences in {seconds:.0f} s, {seen.total()} differ")
    for kind, times in seen.most_common():
        print(f"{times:6} {kind}")
    return 1 if seen else 0


def _search(seed: int, ignored: Sequence[str], numbers: range) -> list[Difference]:
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
    IGNORED.update(name.lower().encode() for name in ignored)
    return asyncio.run(search(seed, numbers))
