"""The root command: the list of commands, how errors are shown, and the exit codes.

0 done, 1 failed or interrupted, 2 wrong usage. An expected error is one line on stderr; a traceback is a bug.
"""

from __future__ import annotations

import _thread
import errno
import importlib
import os
import signal
import sys
import threading
from typing import Any

import click

from miniq import __version__
from miniq.client.interrupts import SIGNALS
from miniq.errors import InvalidRequest, MiniQError

COMMANDS = {
    "serve": "serve",
    "worker": "worker",
    "send": "messages",
    "receive": "messages",
    "ack": "leases",
    "release": "leases",
    "fail": "leases",
    "extend": "leases",
    "result": "result",
    "peek": "messages",
    "queues": "queues",
    "consumers": "consumers",
    "schedules": "schedules",
    "topics": "topics",
    "publish": "topics",
    "top": "top",
    "purge": "queues",
    "redrive": "queues",
    "history": "broker",
    "keys": "keys",
    "backup": "broker",
    "restore": "broker",
    "check": "check",
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
"""Each command and its module, which is imported only when it is needed: imports delay the command."""

HIDDEN = {"copy-write": "copy_ends", "copy-read": "copy_ends"}
"""Commands that `miniq copy` starts as processes."""

HINTS = {
    "store_unavailable": "; start a broker with `miniq serve`, or name another one with --url",
    "results_off": " (`miniq queues set QUEUE --results 1h`)",
    "store_locked": ". Talk to it through its broker with --url http://HOST:PORT",
}
"""What to do about an error, in terms of the command line."""


NOT_USAGE = frozenset({None, "ca", "client_cert", "curve_key", "body", "path", "folder"})
"""Fields that are invalid because of data or of what others have: a server's certificate and keys, the body of a
message, a folder that must not exist yet."""

_UNWRITABLE = (errno.EBADF, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Errors of a file that is closed, or on a disk that is full or broken."""


class Root(click.Group):
    """A group that imports the module of a command only when that command is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        module = COMMANDS.get(cmd_name) or HIDDEN.get(cmd_name)
        if module is None:
            return None
        function = "import_" if cmd_name == "import" else cmd_name.replace("-", "_")
        command: click.Command = getattr(importlib.import_module(f"miniq.cli.{module}"), function)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:  # for which click would print an empty line, also where there is no terminal
            if sys.stderr.isatty():
                click.echo(err=True)
            raise click.Abort from None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """For an unknown command, suggest the most similar one."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            from difflib import get_close_matches

            near = get_close_matches(args[0], COMMANDS, 1) if args else []
            if not near or "Did you mean" in error.message:
                raise
            raise click.UsageError(f"{error.message} Did you mean {near[0]!r}?", ctx) from None


@click.command(
    cls=Root,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Client commands take --url (or MINIQ_URL): the address of a broker, or the folder of a store that no "
    "broker has open. Exit codes: 0 done, 1 failed or interrupted (Ctrl-C, SIGTERM), 2 wrong usage.",
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
    open_standard_streams()
    # SIGTERM is handled like Ctrl-C. A background job of a shell ignores Ctrl-C.
    numbers = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    for number in numbers:
        signal.signal(number, signal.default_int_handler)
    sys.unraisablehook = _repeat_interrupt
    code = run(args)
    ignore_interrupts()
    sys.exit(code)


def _repeat_interrupt(unraisable: sys.UnraisableHookArgs) -> None:
    """Deliver a Ctrl-C again that came where Python drops exceptions: in a destructor or a callback, such as those of
    imports."""
    if isinstance(unraisable.exc_value, KeyboardInterrupt):
        threading.Timer(0.01, _thread.interrupt_main).start()
    else:
        sys.__unraisablehook__(unraisable)


def run(args: list[str] | None = None) -> int:
    """Run one command, and return its exit code."""
    try:
        code: Any = root.main(args, prog_name="miniq", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        say("interrupted")
        return 1
    except MiniQError as error:
        # An unreachable database is not a broker that could be started.
        database = error.code == "store_unavailable" and error.field == "store"
        hint = "" if database or error.field == "curve_key" else HINTS.get(error.code, "")
        say(unauthorized(error.text) if error.code == "unauthorized" and error.field is None else error.text + hint)
        return 2 if isinstance(error, InvalidRequest) and error.field not in NOT_USAGE else 1
    except BrokenPipeError:
        discard_output()  # the reader of the pipe has ended
        return 1
    except OSError as error:
        discard_output()
        if error.filename is not None:
            say(f"{error.strerror}: {error.filename}")
        elif error.errno in _UNWRITABLE:
            say(f"cannot write the output: {error.strerror}")
        else:
            say(f"{error.strerror or error}")
        return 1


def unauthorized(text: str) -> str:
    """The error of a call without a valid key, in terms of the command line."""
    problem, mark, rest = text.partition("; all keys")
    if problem.startswith("an API key is required"):
        problem = "an API key is required: --api-key KEY, or MINIQ_API_KEY"
    else:
        problem += " (--api-key or MINIQ_API_KEY)"
    return problem + mark + rest


def ignore_interrupts() -> None:
    """Let no signal change how the command ends, because its work is done or its cleanup has begun."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def open_standard_streams() -> None:
    """Replace a closed stdin, stdout or stderr by a file that can be neither read nor written.

    Otherwise the next file or socket that is opened would get its number, and the data meant for it.
    """
    unusable = {"stdin": (os.O_WRONLY, "r"), "stdout": (os.O_RDONLY, "w"), "stderr": (os.O_WRONLY, "w")}
    for number, (name, (flag, mode)) in enumerate(unusable.items()):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, flag)  # gets the lowest free number, which is this one
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, mode, closefd=False))


def discard_output() -> None:
    """Drop unwritten output that cannot be written to stdout; otherwise Python would try again when it exits."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def say(text: str) -> None:
    """Print a message for people on stderr."""
    click.echo(f"miniq: {text}", err=True)
