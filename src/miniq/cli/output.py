"""Output: JSON in the shapes of the HTTP API, tables and short lines for people, progress, files."""

from __future__ import annotations

import os
import re
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
from miniq.api.messages import shown_messages, wire_messages
from miniq.cli.root import ignore_interrupts
from miniq.client._sync.message import Message
from miniq.files import name_new
from miniq.json_values import is_json
from miniq.message import JSON

_ACTING = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def json_line(value: Any) -> None:
    """One JSON object on a line of stdout."""
    click.echo(codec.encode_json(value).decode())


def line(as_json: bool, value: Any, text: str) -> None:
    """Print a value as JSON, or text for people."""
    json_line(value) if as_json else click.echo(text)


def result(as_json: bool, value: Any, text: str) -> None:
    """Print the result of a command, which is its last line: from here on a signal no longer changes how it ends."""
    ignore_interrupts()
    line(as_json, value, text)


def message_record(message: Message) -> shapes.WireMessage:
    """A message in the shape of the HTTP API."""
    now = time.time_ns() // 1000
    if message.receipt is None:
        return shown_messages([message._stored], now, "json")[0]
    return wire_messages([message._stored], "json")[0]


def body_text(message: Message) -> str:
    """A body on one line: JSON, or the size and media type of other bytes."""
    return bytes_text(message.data, message.content_type)


def bytes_text(data: bytes, content_type: str) -> str:
    """The bytes of a body on one line."""
    if is_json(content_type):
        return data.decode()
    if content_type.startswith("text/"):
        return msgspec.json.encode(data.decode(errors="replace")).decode()
    return f"<{len(data)} bytes of {content_type}>"


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
    texts = [[harmless(str(cell)) for cell in row] for row in rows]
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


def age(seconds: float) -> str:
    """How long ago something was, to a tenth of a second."""
    if seconds < 0.05:
        return "now"
    return f"{seconds:.1f}s" if seconds < 1 else duration(seconds)


def brief(seconds: float) -> str:
    """A duration that may be short."""
    return f"{seconds * 1000:.3g}ms" if seconds < 1 else duration(seconds)


def exact_duration(seconds: float) -> str:
    """A duration that is not rounded, in the units in which options are given: `14 d`, `1 h 30 m`, `500 ms`."""
    if 0 < seconds < 1:
        return f"{round(seconds * 1000, 3):.10g} ms"
    parts = []
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        whole, seconds = divmod(seconds, length)
        if whole:
            parts.append(f"{whole:.0f} {unit}")
    if seconds or not parts:
        parts.append(f"{round(seconds, 6):.10g} s")
    return " ".join(parts)


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


def harmless(text: str) -> str:
    """Text without effect on a terminal: control characters, and those that turn the direction of text, as escapes."""
    return _ACTING.sub(lambda found: " " if found[0] in "\t\n\r" else f"\\u{ord(found[0]):04x}", text)


def first_line(error: str) -> str:
    """The first line of an error, cut."""
    return cut(error.partition("\n")[0], 100)


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
def part_of(path: str, overwrite: bool = True) -> Iterator[str]:
    """The path of a new file beside `path`, which is renamed to it on success; `FileExistsError` if there is one that
    must not be overwritten. A pipe or device is written directly."""
    if os.path.exists(path) and not os.path.isfile(path):
        yield path
        return
    given, path = path, os.path.realpath(path)
    part = f"{path}.{secrets.token_hex(4)}.part"
    try:
        try:
            open(part, "xb").close()
        except OSError as error:
            error.filename = given
            raise
        yield part
        if overwrite:
            os.replace(part, path)
        else:
            name_new(part, path)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(part)
