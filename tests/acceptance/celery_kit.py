"""Celery workers as processes of their own, and what their tasks wrote."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
DEADLINE = 60.0


def environment(url: str, log: Path, options: dict[str, Any] | None = None, **conf: Any) -> dict[str, str]:
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("MINIQ_")},
        "BROKER": url,
        "LOG": str(log),
        "OPTIONS": json.dumps(options or {}),
        "CONF": json.dumps(conf),
        "PYTHONWARNINGS": "ignore",
    }


class Worker:
    """A worker that is ready."""

    def __init__(self, process: subprocess.Popen[bytes], output: Path) -> None:
        self.process = process
        self._output = output

    @property
    def output(self) -> str:
        return self._output.read_text()

    def stop(self, how: int = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(how)
        return self.process.wait(60)


@contextlib.contextmanager
def working(env: dict[str, str], *args: str, name: str = "w") -> Iterator[Worker]:
    """A worker with these flags, until the end of the block."""
    output = Path(env["LOG"]).with_name(f"worker-{time.monotonic_ns()}.log")
    with output.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "celery", "-A", "celery_tasks", "worker", "-n", f"{name}@here", "-l", "INFO", *args],
            cwd=HERE,
            env=env,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    worker = Worker(process, output)
    try:
        until(lambda: " ready." in worker.output or process.poll() is not None, lambda: worker.output)
        assert process.poll() is None, worker.output
        yield worker
    finally:
        if worker.process.poll() is None:
            worker.stop(signal.SIGTERM if worker.process.poll() is None else 0)


def call(env: dict[str, str], code: str) -> str:
    """Run statements as a program that sends tasks; what it printed."""
    lines = "from celery_tasks import *\n" + code
    ended = subprocess.run(
        [sys.executable, "-c", lines], cwd=HERE, env=env, capture_output=True, text=True, timeout=120
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def notes(env: dict[str, str], what: str | None = None) -> list[dict[str, Any]]:
    """What tasks wrote so far."""
    path = Path(env["LOG"])
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [line for line in lines if what is None or line["what"] == what]


def until(condition: Callable[[], Any], state: Callable[[], Any] = lambda: "", seconds: float = DEADLINE) -> Any:
    """Wait until something is true, and return it."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, f"not within {seconds} s: {state()}"
        time.sleep(0.02)
    return found
