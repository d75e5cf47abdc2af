"""Flags that several commands share: the broker to talk to, durations, sizes, `--json`."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from types import MappingProxyType
from typing import Any, TypeVar

import click
from msgspec import Struct, structs

from miniq.client._sync.client import Client
from miniq.client.connection import connect
from miniq.client.url import REMOTE, folder_of, locate
from miniq.errors import InvalidRequest, MiniQError, StoreLocked

F = TypeVar("F", bound=Callable[..., Any])
R = TypeVar("R")

DEFAULT_URL = "http://127.0.0.1:5000"
SOON = 0.5
"""Seconds for which calls of an interactive command are retried while the broker is unreachable."""
_HERE = click.core.ParameterSource.COMMANDLINE
_SYNONYMS = {"rm": "delete", "remove": "delete", "del": "delete", "add": "create", "update": "set"}
"""Verbs of other programs, and ours."""
_UNITS = {None: 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SIZES = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3}

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON, one object per line.")
summary_json = click.option("--json", "as_json", is_flag=True, help="Print the summary as one JSON object.")
status = click.option(
    "--status", type=click.Choice(["ready", "delayed", "leased"]), help="Only messages in this state."
)
store = click.option("--store", metavar="URL", help="Store that no broker has open, such as rocksdb:DIR.")
yes = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")


class Target(Struct, frozen=True):
    """The broker that a command talks to."""

    url: str
    api_key: str | None = None
    ca: str | None = None
    client_cert: str | None = None
    client_key: str | None = None
    curve_key: str | None = None

    @property
    def is_remote(self) -> bool:
        """Whether the URL is that of a running broker; otherwise it is a store, opened in this process."""
        return locate(self.url)[0] in REMOTE

    def open(self, patience: float = SOON, timeout: float | None = None) -> Client:
        """A client, to be closed by the caller. Calls are retried for `patience` seconds while the broker is
        unreachable; a broker that is unreachable from the start is reported at once."""
        if not self.is_remote:
            return connect(self.url)
        if patience > SOON:
            with self.open() as probe:
                probe.queues()
        options = structs.asdict(self) | {"retry": patience, "timeout": timeout}
        del options["url"]
        return connect(self.url, **{name: value for name, value in options.items() if value is not None})

    def environment(self) -> dict[str, str]:
        """The environment of a child process that talks to the same broker. Secrets are passed here because every user
        of the machine can read a command line."""
        settings = {f"MINIQ_{name.upper()}": value for name, value in structs.asdict(self).items()}
        return dict(os.environ) | {name: value for name, value in settings.items() if value is not None}


_FLAGS = {
    "curve_key": ("FILE", "File of a CURVE key, for tcp:// URLs."),
    "client_key": ("FILE", "Private key of --client-cert, if it is in another file."),
    "client_cert": ("FILE", "Certificate of this client, if the broker requires one, for https:// URLs."),
    "ca": ("FILE", "Certificate authorities to trust instead of the system's, for https:// URLs."),
    "api_key": ("KEY", "API key, if the broker requires one."),
}
"""The flags about a broker beside `--url`: their values, and their help. Each can also be set in the environment."""
_SCHEMES = {"ca": "https", "client_cert": "https", "client_key": "https", "curve_key": "tcp"}
"""The URLs that some flags are for; with others, the environment is ignored and the flag is wrong usage."""


def target(command: Callable[..., R]) -> Callable[..., R]:
    """Give a command `--url`, `--api-key` and the flags for encryption, and pass it the broker that they name."""

    @functools.wraps(command)
    def with_target(*args: Any, **kwargs: Any) -> R:
        ctx = click.get_current_context()
        given: dict[str, Any] = {name: kwargs.pop(name) or None for name in ("url", *_FLAGS)}
        if isinstance(
            ctx.obj, Target
        ):  # `miniq queues --url URL create` is the same as `miniq queues create --url URL`
            for name in given:
                if ctx.get_parameter_source(name) is not _HERE:
                    given[name] = getattr(ctx.obj, name)
        url = given["url"] or ""
        if ctx.invoked_subcommand is None and kwargs.get("store") is None:
            require_store(url, "url")
        for name, scheme in _SCHEMES.items():
            if given[name] is not None and not url.lower().startswith(f"{scheme}:"):
                if ctx.get_parameter_source(name) is _HERE:
                    flag = f"--{name.replace('_', '-')}"
                    raise click.UsageError(f"{flag} is for {scheme}:// URLs, and this one is {url}.")
                given[name] = None
        return command(Target(**given | {"url": url}), *args, **kwargs)

    for name, (metavar, help) in _FLAGS.items():
        variable = f"MINIQ_{name.upper()}"
        flag = f"--{name.replace('_', '-')}"
        click.option(flag, envvar=variable, metavar=metavar, help=f"{help} [env: {variable}]")(with_target)
    return click.option(
        "--url",
        envvar="MINIQ_URL",
        default=DEFAULT_URL,
        show_default=True,
        help="Address of a broker, or folder of a store. [env: MINIQ_URL]",
    )(with_target)


class Verbs(click.Group):
    """A command with subcommands. `aliases` are other names of them, which help does not show."""

    def __init__(self, *args: Any, aliases: Mapping[str, str] = MappingProxyType({}), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._aliases = aliases

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return super().get_command(ctx, self._aliases.get(cmd_name, cmd_name))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """For an unknown verb, suggest ours."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            verb = _SYNONYMS.get(args[0])
            if verb not in self.commands:
                raise
            raise click.UsageError(
                f"{error.message.partition(' Did you mean')[0]} Did you mean {verb!r}?", ctx
            ) from None


def require_store(url: str, field: str) -> None:
    """Refuse an invalid URL, and a folder without a store: a client command never creates one."""
    folder = missing_store(url, field)
    if folder is not None:
        store = f"rocksdb:{folder}" if folder == url else url
        broker = " or the address of a broker" if field == "url" else ""
        raise InvalidRequest(
            f"{field}: there is no store in {folder}, and this command does not create one; name the folder of a "
            f"store{broker}, or create it with `miniq serve --store {store}`",
            field=field,
        )


@contextmanager
def without_broker(advice: str = "stop that one") -> Iterator[None]:
    """For commands that have no `--url`: the advice about a folder in use names none."""
    try:
        yield
    except StoreLocked as error:
        raise MiniQError(f"{error.text.partition(';')[0]}; {advice}", field=error.field) from None


def missing_store(url: str, field: str) -> str | None:
    """The folder of a URL that has no store in it; None for all others."""
    folder = folder_of(url, field)
    if folder is None:
        return None
    from miniq.store.embedded.folder import MARKER, holds

    return None if holds(folder, MARKER, field) else folder


def pairs_option(flag: str, name: str, help: str) -> Callable[[F], F]:
    """A repeatable flag with the value NAME=VALUE."""
    return click.option(flag, name, multiple=True, callback=_pairs, metavar="NAME=VALUE", help=help)


def _pairs(ctx: click.Context, param: click.Parameter, given: Iterable[str]) -> dict[str, str]:
    values: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{text!r} is not NAME=VALUE", ctx, param)
        values[name.strip()] = value
    return values


class Parsed(click.ParamType):  # type: ignore[type-arg]
    """The type of a flag whose text a function parses; `expected` completes the error "X is not …"."""

    def __init__(self, name: str, parse: Callable[[str], Any], expected: str) -> None:
        self.name = name
        self._parse = parse
        self._expected = expected

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value  # a default
        try:
            return self._parse(value)
        except ValueError:
            self.fail(f"{value!r} is not {self._expected}", param, ctx)


def _seconds(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)\s*(ms|s|m|h|d)?", text.strip())
    if match is None:
        raise ValueError(text)
    return float(match[1]) * _UNITS[match[2]]


def _size(text: str) -> int:
    match = re.fullmatch(r"(\d+)\s*([kmg]?)(?:i?b)?", text.strip().lower())
    if match is None:
        raise ValueError(text)
    return int(match[1]) * _SIZES[match[2]]


def _rate(text: str) -> float:
    rate = float(text)
    if not 0 < rate < float("inf"):
        raise ValueError(text)
    return rate


def _moment(text: str) -> datetime:
    moment = datetime.fromisoformat(text.strip())
    if moment.tzinfo is None:
        raise ValueError(text)
    return moment


MOMENT = Parsed("moment", _moment, "a moment with an offset from UTC, such as 2026-01-31T08:00:00Z")
SECONDS = Parsed("seconds", _seconds, "a duration such as 30, 0.5, 500ms, 5m, 2h or 14d")
SIZE = Parsed("bytes", _size, "a size such as 1024, 64k or 5m")
NUMBER = Parsed("number", float, "a number, such as 2 or 0.5")
RATE = Parsed("number", _rate, "a number of messages per second, such as 50")
RATE_OR_NONE = Parsed(
    "number", lambda text: 0.0 if float(text) == 0 else _rate(text), "a number of messages per second, such as 50"
)
"""0 is no limit."""


class Whole(click.IntRange):
    """A whole number within a range."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            int(value)
        except ValueError:
            self.fail(f"{value!r} is not a whole number", param, ctx)
        return super().convert(value, param, ctx)


def note_unreadable(client: Client, what: str) -> None:
    """Say on stderr that a list is empty because the key may read nothing."""
    identity = client.whoami()
    if not identity.open and not any(scope.partition(":")[0] in ("read", "*") for scope in identity.allow):
        click.echo(f"miniq: key {identity.name!r} may read no {what}", err=True)
