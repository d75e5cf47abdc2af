"""`miniq copy`: a file goes through the broker line by line, from one process to another.

This process makes a queue for the copy, starts the writer and the reader (`copy_ends.py`), shows how far they are,
and cleans up. The copy gets its name only when it is whole.
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
from miniq.cli.output import json_line, plural, size
from miniq.cli.processes import end, ignore_interrupts, interrupt_on_sigterm, reachable, reader, start
from miniq.errors import MiniQError

LEASE = 30.0
"""Seconds after which lines come again that the reader was given and never got, for example because the broker
ended in between. The reader puts them in their place."""
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
    contains. OUT is created only on success. The queue is created for the copy and deleted at the end.

    \b
    Examples:
      miniq copy access.log copy.log
      miniq copy photo.jpg copy.jpg --url ./miniq-data
    """
    interrupt_on_sigterm()
    began = time.perf_counter()
    queue = f"copy-{secrets.token_hex(8)}"
    with part_of(copy) as part, reachable(at) as broker, own_queue(broker, queue):
        lines, count = _pass(broker, queue, source, part)
    seconds = time.perf_counter() - began
    if as_json:
        json_line({"lines": lines, "bytes": count, "seconds": round(seconds, 3)})
    else:
        click.echo(f"copied {plural(lines, 'line')}, {size(count)} in {seconds:.1f} s")


@contextmanager
def part_of(copy: str) -> Iterator[str]:
    """Where to write the copy: beside it, to be renamed at the end. What is no file (a pipe, a device) is
    written to as it is."""
    if os.path.exists(copy) and not os.path.isfile(copy):
        yield copy
        return
    copy = os.path.realpath(copy)
    part = f"{copy}.{secrets.token_hex(4)}.part"
    open(part, "xb").close()
    try:
        yield part
        os.replace(part, copy)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(part)


@contextmanager
def own_queue(broker: Target, queue: str) -> Iterator[None]:
    """A queue for this copy only."""
    with broker.open() as client:
        client.queue(queue).configure(visibility_timeout=LEASE, max_bytes=AHEAD, retention=86400.0)
    try:
        yield
    finally:
        ignore_interrupts()
        with broker.open(PATIENCE) as client:
            try:
                client.queue(queue).delete()
            except MiniQError as error:
                raise MiniQError(f"the queue {queue} could not be deleted: {error.text}") from None


def _pass(broker: Target, queue: str, source: str, part: str) -> tuple[int, int]:
    """Run both ends until the reader has everything: lines and bytes."""
    env = broker.environment()
    ends = [
        start(["copy-write", queue, source], env, err=subprocess.PIPE),
        start(["copy-read", queue, part], env, err=subprocess.PIPE),
    ]
    try:
        progress = _watch(ends, source)
    finally:
        ignore_interrupts()
        end(ends)
        for process in ends:
            reader(process.stdout).close()
            reader(process.stderr).close()
    return progress


def _watch(ends: list[subprocess.Popen[str]], source: str) -> tuple[int, int]:
    """Follow both ends; raise what one says when it fails. The reader tells how far it is, line by line."""
    lines = count = 0
    whole = os.path.getsize(source)
    visible = sys.stderr.isatty()
    with selectors.DefaultSelector() as selector, _fresh_line(visible):
        for process in ends:
            selector.register(reader(process.stdout), selectors.EVENT_READ, process)
        while selector.get_map():
            for key, _ in selector.select():
                process = key.data
                said = reader(process.stdout).readline()
                if said:
                    lines, count = (int(number) for number in said.split())
                    if visible:
                        click.echo(f"\r{count / whole if whole else 1:4.0%}  {lines} lines", nl=False, err=True)
                    continue
                selector.unregister(key.fileobj)
                if process.wait() != 0:
                    why = reader(process.stderr).read().strip().removeprefix("miniq: ")
                    raise MiniQError(f"not copied: {why or f'a process ended with {process.returncode}'}")
    return lines, count


@contextmanager
def _fresh_line(visible: bool) -> Iterator[None]:
    """Whatever comes after the progress stands on a line of its own."""
    try:
        yield
    finally:
        if visible:
            click.echo(err=True)
