"""The root of all commands: which there are, how errors are told, and the exit codes.

0 done, 1 failed, 2 wrong usage. An error that can be expected is one line on stderr; a traceback is a fault of ours.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

import click

from miniq import __version__
from miniq.errors import MiniQError

COMMANDS = {
    "serve": "serve",
    "send": "messages",
    "receive": "messages",
    "ack": "leases",
    "release": "leases",
    "extend": "leases",
    "peek": "messages",
    "queues": "queues",
    "top": "top",
    "purge": "queues",
    "redrive": "queues",
    "history": "broker",
    "keys": "keys",
    "backup": "broker",
    "restore": "broker",
    "migrate": "migrate",
    "copy": "copy",
    "produce": "produce",
    "consume": "consume",
    "pipeline": "pipeline",
    "import": "files",
    "export": "files",
    "bench": "bench",
    "completion": "completion",
}
"""Each command and the module it is in, imported when it is needed: a shell waits for every import."""

HIDDEN = {"copy-write": "copy_ends", "copy-read": "copy_ends"}
"""Commands that other commands start as processes of their own."""


HINTS = {
    "store_unavailable": "; start a broker with `miniq serve`, or name another one with --url",
    "unauthorized": " (--api-key or MINIQ_API_KEY)",
    "store_locked": ". Talk to it through its broker with --url http://HOST:PORT",
}
"""What to do about an error, in the words of the command line."""


class Root(click.Group):
    """A group that imports a command's module only when that command is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        module = COMMANDS.get(cmd_name) or HIDDEN.get(cmd_name)
        if module is None:
            return None
        found: click.Command = getattr(importlib.import_module(f"miniq.cli.{module}"), attribute(cmd_name))
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """A name that is not there is answered with those that are like it."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            from difflib import get_close_matches

            near = get_close_matches(args[0], COMMANDS, 1) if args else []
            if not near or "Did you mean" in error.message:
                raise
            raise click.UsageError(f"{error.message} Did you mean {near[0]!r}?", ctx) from None


def attribute(command: str) -> str:
    """The name of a command's function in its module; `import` is a word of Python."""
    return command.replace("-", "_") + ("_" if command == "import" else "")


@click.command(
    cls=Root,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Client commands take --url (or MINIQ_URL): a broker's address, or the folder of a store that no broker "
    "has open. Exit codes: 0 done, 1 failed, 2 wrong usage.",
)
@click.version_option(__version__, "--version", prog_name="miniq")
def root() -> None:
    """MiniQ, a message broker.

    \b
    Start one and use it:
      miniq serve
      miniq send emails '{"to": "a@b.c"}'
      miniq receive emails --wait 5
    """


def main(args: list[str] | None = None) -> None:
    """Run one command and exit."""
    sys.exit(run(args))


def run(args: list[str] | None = None) -> int:
    """Run one command; its exit code."""
    try:
        code: Any = root.main(args, prog_name="miniq", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        say("stopped")
        return 1
    except BrokenPipeError:
        # Whoever read our output has enough. Python must not flush what is left of it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except MiniQError as error:
        # A database that is away is no broker that could be started.
        away = error.code == "store_unavailable" and error.field == "store"
        say(error.text + ("" if away else HINTS.get(error.code, "")))
        return 1
    except OSError as error:
        name = "" if error.filename is None else f": {error.filename}"
        say(f"{error.strerror or error}{name}")
        return 1


def say(text: str) -> None:
    """A word to people, beside the output."""
    click.echo(f"miniq: {text}", err=True)
