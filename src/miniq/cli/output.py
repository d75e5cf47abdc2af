"""Output: JSON in the shapes of the HTTP API, tables and short lines for people, progress, files."""

from __future__ import annotations

import os
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import click
import msgspec

from miniq.api import codec, shapes
from miniq.api.codec import is_json
from miniq.api.messages import shown_messages, wire_messages
from miniq.client._sync.message import Message
from miniq.message import JSON


def json_line(value: Any) -> None:
    """One JSON object on a line of stdout."""
    click.echo(codec.encode_json(value).decode())


def result(as_json: bool, value: Any, text: str) -> None:
    """Print the result of a command: a value as JSON, or text for people."""
    json_line(value) if as_json else click.echo(text)


def message_record(message: Message) -> shapes.WireMessage:
    """A message in the shape of the HTTP API."""
    now = time.time_ns() // 1000
    if message.receipt is None:
        return shown_messages([message._stored], now, "json")[0]
    return wire_messages([message._stored], "json")[0]


def body_text(message: Message) -> str:
    """A body on one line: JSON, or the size and media type of other bytes."""
    if is_json(message.content_type):
        return message.data.decode()
    if message.content_type.startswith("text/"):
        return msgspec.json.encode(message.data.decode(errors="replace")).decode()
    return f"<{len(message.data)} bytes of {message.content_type}>"


def body_bytes(message: Message) -> bytes:
    """A body for a pipe: the text of a JSON string, anything else as it was sent."""
    if message.content_type == JSON and isinstance(message.body, str):
        return message.body.encode()
    return message.data


def raw(data: bytes) -> None:
    """Bytes to stdout as they are."""
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def table(heads: Sequence[str], rows: Iterable[Sequence[object]], numbers: Iterable[int] = ()) -> None:
    """A table; columns in `numbers` are right-aligned, the last one is cut to the width of the terminal."""
    texts = [[str(cell) for cell in row] for row in rows]
    right = set(numbers)
    widths = [max(len(head), *(len(row[column]) for row in texts), 0) for column, head in enumerate(heads)]
    if sys.stdout.isatty():
        widest = shutil.get_terminal_size().columns - sum(widths[:-1]) - 2 * len(widths[:-1])
        widths[-1] = min(widths[-1], max(widest, 10))
    for row in [list(heads), *texts]:
        row[-1] = cut(row[-1], widths[-1])
        cells = [
            text.rjust(width) if column in right else text.ljust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        click.echo("  ".join(cells).rstrip())


def duration(seconds: float) -> str:
    """A duration in its largest unit."""
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= length:
            return f"{seconds / length:.3g}{unit}"
    return f"{max(seconds, 0):.3g}s"


def size(count: int) -> str:
    """A number of bytes in its largest unit."""
    amount = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{count} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def plural(count: int, word: str) -> str:
    """`1 message`, `2 messages`."""
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def cut(text: str, width: int, ellipsis: str = "…") -> str:
    """Text of at most `width` characters."""
    return text if len(text) <= width else text[: width - 1] + ellipsis


@contextmanager
def progress_bar(visible: bool = True) -> Iterator[Callable[[int, int], None]]:
    """A function that shows how much of a total is done, on a bar on stderr if that is a terminal."""
    if not visible or not sys.stderr.isatty():
        yield lambda done, total: None
        return
    with click.progressbar(length=1, file=sys.stderr) as bar:

        def show(done: int, total: int) -> None:
            bar.length = total
            bar.update(done - bar.pos)

        yield show


@contextmanager
def part_of(path: str) -> Iterator[str]:
    """The path of a new file beside `path`, which is renamed to it on success. A pipe or device is written directly."""
    if os.path.exists(path) and not os.path.isfile(path):
        yield path
        return
    path = os.path.realpath(path)
    part = f"{path}.{secrets.token_hex(4)}.part"
    open(part, "xb").close()
    try:
        yield part
        os.replace(part, path)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(part)
