"""CPU time of this process and of all that it has started, by kind: comparable also on a machine that is not idle."""

from __future__ import annotations

import os
from collections import defaultdict

TICK = os.sysconf("SC_CLK_TCK")
KINDS = {"-m miniq serve": "broker", "bench.spark_toys": "broker", "bin/java": "jvm", "-m pyspark.": "workers"}
"""By a part of the command line; everything else is the driver."""


def cpu_times() -> dict[str, float]:
    """CPU seconds so far, by kind of process."""
    processes: dict[int, tuple[str, float, float]] = {}
    children: dict[int, list[int]] = defaultdict(list)
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat") as file:
                stat = file.read().rpartition(")")[2].split()
            with open(f"/proc/{name}/cmdline") as file:
                command = file.read().replace("\0", " ")
        except OSError:
            continue  # it has just ended
        kind = next((kind for text, kind in KINDS.items() if text in command), "driver")
        own, ended = (sum(map(int, stat[at : at + 2])) / TICK for at in (11, 13))
        processes[int(name)] = kind, own, ended
        children[int(stat[1])].append(int(name))
    total: dict[str, float] = defaultdict(float)
    left = [os.getpid()]
    while left:
        process = left.pop()
        left += children[process]
        kind, own, ended = processes.get(process, ("driver", 0.0, 0.0))
        total[kind] += own
        # What has ended under Java or a daemon of Python workers was a worker.
        if kind in ("jvm", "workers"):
            total["workers"] += ended
    return total
