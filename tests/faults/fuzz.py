"""`python -m tests.faults.fuzz [RUNS]`: every door under atheris, which looks for bytes that reach new code.

It ends with the first input that is answered with a fault of the broker, and keeps that in a file.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from pathlib import Path

RUNS = 200_000


def knock_at(name: str, runs: int) -> None:
    """Does not return: atheris ends the process."""
    import atheris

    with atheris.instrument_imports(include=["miniq"]):
        from tests.faults.doors import DOORS
    loop = asyncio.new_event_loop()
    door = DOORS[name]()
    with tempfile.TemporaryDirectory() as corpus:
        for number, seed in enumerate(door.seeds):
            Path(corpus, str(number)).write_bytes(seed)
        options = [f"-runs={runs}", "-max_len=2000", "-timeout=20", "-print_final_stats=1", f"-artifact_prefix={name}-"]
        atheris.Setup([sys.argv[0], *options, corpus], lambda data: loop.run_until_complete(door.knock(data)))
        atheris.Fuzz()


def main() -> None:
    if len(sys.argv) == 3:
        knock_at(sys.argv[1], int(sys.argv[2]))
        return
    runs = sys.argv[1] if len(sys.argv) == 2 else str(RUNS)
    for name in ("http", "zmq"):
        print(f"{name}: {runs} runs", flush=True)
        if subprocess.run([sys.executable, "-m", "tests.faults.fuzz", name, runs], check=False).returncode:
            sys.exit(f"{name}: found something, see above")


if __name__ == "__main__":
    main()
