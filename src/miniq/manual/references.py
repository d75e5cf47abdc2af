"""Pages of the manual that are made from the code: the Python API from its docstrings, the command from its help."""

from __future__ import annotations

from collections.abc import Iterator

import click
from click.formatting import HelpFormatter

import miniq
from miniq.cli.root import COMMANDS
from miniq.cli.root import root as command

PYTHON = {
    "Connect": ("connect", "connect_async"),
    "Clients": ("Client", "Queue", "Message", "Topic"),
    "What calls return": (
        "Result", "Dead", "QueueInfo", "Counts", "QueueSettings", "Retry", "Consumer", "ConfiguredQueue", "TopicInfo",
        "Subscription", "Published", "Schedule", "Firing", "HistoryPage", "Event", "Stats", "Trends", "ApiKey",
        "Identity", "RedriveProgress",
    ),
    "Claims and stages": ("Claims", "Claim", "ClaimGroup", "Staging", "Stage", "Committed"),
    "The smallest form": ("MiniQ",),
}  # fmt: skip
"""The sections of the page on Python."""
CONSTRUCTED = {"miniq.App", "miniq.MiniQ", "miniq.Reject"}
"""Classes that programs construct; the objects of others come from calls."""


def references() -> dict[str, str]:
    """The text of each page, by its place."""
    return {
        "reference/python.md": "".join(_python()),
        "reference/workers.md": _page(
            "Tasks and workers",
            "How they are used: [workers in production](../howto/workers.md).",
            *(f"miniq.{name}" for name in ("App", "Task", "Job", "Attempt", "current_message", "Reject", "TaskFailed")),
            "miniq.ResultTimeout",
            "miniq.testing.drain",
        ),
        "reference/spark.md": _page(
            "Spark",
            'The options of `format("miniq")` are in [the how-to](../howto/spark.md), and the pipelines as commands '
            "in [theirs](../howto/pipelines.md).",
            "miniq.spark.sessions.session",
            "miniq.spark.source.register",
            *(
                f"miniq.spark.pipelines.{name}.{name}"
                for name in ("ingest", "drain", "copy", "archive", "report", "replay", "reprocess", "transform")
            ),
        ),
        "reference/errors.md": "".join(_errors()),
        "reference/commands.md": "".join(_commands()),
    }


def _page(title: str, text: str, *names: str) -> str:
    return f"# {title}\n\n{text}\n\n" + "".join(_described(name, 2) for name in names)


def _described(name: str, level: int) -> str:
    """What mkdocstrings is told to write about a name."""
    merged = str(name in CONSTRUCTED).lower()
    return f"::: {name}\n    options: {{heading_level: {level}, merge_init_into_class: {merged}}}\n\n"


def _python() -> Iterator[str]:
    yield "# Python\n\n"
    yield "`miniq.connect` returns a `Client`. `miniq.connect_async` returns its twin `AsyncClient`, with the same "
    yield "methods, awaited. Tasks are on [a page of their own](workers.md), as are [errors](errors.md).\n\n"
    for title, names in PYTHON.items():
        yield f"## {title}\n\n"
        for name in names:
            yield _described(f"miniq.{name}", 3)


def _errors() -> Iterator[str]:
    yield "# Errors\n\nEvery error has a `code` for programs, a `text` for people and, if one is wrong, a `field`. A "
    yield "client raises the class whose code the broker answers. [The protocol](../protocol.md#errors) has the status "
    yield "of each.\n\n| class | code | is a |\n|---|---|---|\n"
    for name in sorted(miniq.__all__):
        kind = getattr(miniq, name)
        if isinstance(kind, type) and issubclass(kind, miniq.MiniQError):
            yield f"| `{name}` | `{kind.code}` | `{kind.__bases__[0].__name__}` |\n"
    yield "\n::: miniq.MiniQError\n"


def _commands() -> Iterator[str]:
    yield "# Commands\n\nEvery command has `--help`, which is what this page shows. "
    yield "Exit codes: 0 done, 1 failed or interrupted, 2 wrong usage.\n\n"
    root = click.Context(command, info_name="miniq")
    for name in COMMANDS:
        found = command.get_command(root, name)
        if found is not None:
            yield from _help(found, click.Context(found, info_name=name, parent=root), 2)


def _help(found: click.Command, context: click.Context, level: int) -> Iterator[str]:
    formatter = HelpFormatter(width=100)
    found.format_help(context, formatter)
    yield f"{'#' * level} {context.command_path}\n\n```text\n{formatter.getvalue().rstrip()}\n```\n\n"
    if isinstance(found, click.Group):
        for name in found.list_commands(context):
            inner = found.get_command(context, name)
            if inner is not None and not inner.hidden:
                yield from _help(inner, click.Context(inner, info_name=name, parent=context), level + 1)
