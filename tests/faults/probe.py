"""`python -m tests.faults.probe URL`: a client whose calls are timed, in a process in which nothing else runs. For each
number on its input it sends a message with that number, receives one and acks it, and answers with a line: what was
done, the numbers, and the seconds that the send and the receive took."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import miniq
from miniq.api import operations as calls
from miniq.errors import MiniQError
from miniq.message import Draft, Lease
from tests.faults.books import number_of

QUEUE = "probe"


def one_round(client: miniq.Client, number: int) -> dict[str, Any]:
    """What came of a message; what is missing was not answered."""
    done: dict[str, Any] = {"number": number}
    try:
        began = time.perf_counter()
        client.perform(calls.Send(QUEUE, [Draft(b'[%d,""]' % number)]))
        done["send"] = time.perf_counter() - began
        began = time.perf_counter()
        taken = client.perform(calls.Receive(QUEUE, 1, 1, 5))
        took = time.perf_counter() - began
        done["received"] = [number_of(stored) for stored in taken]
        if taken:
            done["receive"] = took
            done["acking"] = done["received"]
            done["outcomes"] = client.perform(
                calls.Ack(QUEUE, [Lease(stored.message.id, stored.receipt or "") for stored in taken])
            )
    except MiniQError as error:
        done["error"] = error.code
    return done


def main(url: str) -> None:
    with miniq.connect(url, retry=0) as client:
        for line in sys.stdin:
            print(json.dumps(one_round(client, int(line))), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
