"""`miniq copy`: a file goes through the broker line by line, from one process to another.

This process creates a queue for the copy, starts the writer and the reader (`copy_ends.py`), shows their progress, and
cleans up. The copy gets its name only when it is complete.
"""

from __future__ import annotations

import os
import secrets
import selectors
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import click

from miniq.cli.flags import Target, summary_json, target
from miniq.cli.output import part_of, plural, result, size
from miniq.cli.processes import end, error_of, reachable, reader, start
from miniq.cli.root import ignore_interrupts
from miniq.client.interrupts import interruptible, shield
from miniq.errors import MiniQError, QueueNotFound

LEASE = 30.0
"""Seconds after which lines are delivered again if the reply to a receive was lost. The reader sorts them."""
AHEAD = 64 * 1024 * 1024
"""Bytes that the writer may be ahead of the reader."""
PATIENCE = 30.0
"""Seconds for which the broker may be unreachable in the middle of a copy."""


@click.command()
@click.argument("source", metavar="IN", type=click.Path(exists=True, dir_okay=False))
@click.argument("copy", metavar="OUT", type=click.Path(dir_okay=False))
@summary_json
@target
def copy(at: Target, source: str, copy: str, as_json: bool) -> None:
    """Copy a file through the broker.

    One process sends the lines, another receives them. The copy is identical byte for byte, whatever the file
    contains. OUT is created only on success, and then replaces a file of that name. The queue is created for the copy
    and deleted at the end.

    \b
    Examples:
      miniq copy access.log copy.log
      miniq copy photo.jpg copy.jpg --url ./miniq-data
    """
    if os.path.exists(copy) and os.path.samefile(source, copy):
        raise click.UsageError(f"OUT {copy!r} is the same file as IN; name another file.")
    began = time.perf_counter()
    queue = f"copy-{secrets.token_hex(8)}"
    with shield, part_of(copy) as part, reachable(at) as broker, own_queue(broker, queue):
        lines, count = _run_ends(broker, queue, source, part)
    seconds = time.perf_counter() - began
    values = {"lines": lines, "bytes": count, "seconds": round(seconds, 3)}
    result(as_json, values, f"copied {plural(lines, 'line')}, {size(count)} in {seconds:.1f} s")


@contextmanager
def own_queue(broker: Target, queue: str) -> Iterator[None]:
    """A queue for this copy only."""
    try:
        with broker.open() as client:
            client.queue(queue).configure(visibility_timeout=LEASE, max_bytes=AHEAD, retention=86400.0)
    except KeyboardInterrupt:
        with suppress(QueueNotFound):
            remove(broker, queue)
        raise
    try:
        yield
    finally:
        remove(broker, queue)


def remove(broker: Target, queue: str) -> None:
    ignore_interrupts()
    with broker.open(PATIENCE) as client:
        try:
            client.queue(queue).delete()
        except QueueNotFound:
            raise
        except MiniQError as error:
            raise MiniQError(f"the queue {queue} could not be deleted: {error.text}") from None


def _run_ends(broker: Target, queue: str, source: str, part: str) -> tuple[int, int]:
    """Run writer and reader until the copy is complete; return its numbers of lines and bytes."""
    env = broker.environment()
    ends = [
        start(["copy-write", queue, source], env, err=subprocess.PIPE),
        start(["copy-read", queue, part], env, err=subprocess.PIPE),
    ]
    try:
        return _watch(ends, source)
    finally:
        ignore_interrupts()
        end(ends)


def _watch(ends: list[subprocess.Popen[str]], source: str) -> tuple[int, int]:
    """Show the progress that the reader prints; raise the error of a process that fails."""
    lines = count = 0
    total = os.path.getsize(source)
    visible = sys.stderr.isatty()
    with selectors.DefaultSelector() as selector:
        for process in ends:
            selector.register(reader(process.stdout), selectors.EVENT_READ, process)
        try:
            while selector.get_map():
                for key, _ in interruptible(selector.select):
                    process = key.data
                    if line := reader(process.stdout).readline():
                        lines, count = (int(number) for number in line.split())
                        if visible:
                            click.echo(f"\r{count / total if total else 1:4.0%}  {lines} lines", nl=False, err=True)
                        continue
                    selector.unregister(key.fileobj)
                    if process.wait() != 0:
                        raise MiniQError(f"not copied: {error_of(process)}")
        finally:
            if visible:
                click.echo(err=True)
    return lines, count
