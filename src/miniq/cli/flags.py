"""Flags that several commands share: the broker to talk to, durations, sizes, `--json`."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import click
from msgspec import Struct

from miniq.client._sync.client import Client
from miniq.client.connection import connect
from miniq.client.url import REMOTE, folder_of, locate
from miniq.errors import InvalidRequest

F = TypeVar("F", bound=Callable[..., Any])
R = TypeVar("R")

DEFAULT_URL = "http://127.0.0.1:5000"
SOON = 0.5
"""Seconds for which calls of an interactive command are retried while the broker is unreachable."""
_HERE = click.core.ParameterSource.COMMANDLINE
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
    api_key: str | None
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
        options = {"retry": patience, "api_key": self.api_key, "curve_key": self.curve_key, "timeout": timeout}
        return connect(self.url, **{name: value for name, value in options.items() if value is not None})

    def environment(self) -> dict[str, str]:
        """The environment of a child process that talks to the same broker. Secrets are passed here because every user
        of the machine can read a command line."""
        settings = {"MINIQ_URL": self.url, "MINIQ_API_KEY": self.api_key, "MINIQ_CURVE_KEY": self.curve_key}
        return dict(os.environ) | {name: value for name, value in settings.items() if value is not None}


def target(command: Callable[..., R]) -> Callable[..., R]:
    """Give a command `--url`, `--api-key` and `--curve-key`, and pass it the broker that they name."""

    @functools.wraps(command)
    def with_target(*args: Any, url: str, api_key: str | None, curve_key: str | None, **kwargs: Any) -> R:
        ctx = click.get_current_context()
        given: dict[str, Any] = {"url": url, "api_key": api_key or None, "curve_key": curve_key or None}
        if isinstance(
            ctx.obj, Target
        ):  # `miniq queues --url URL create` is the same as `miniq queues create --url URL`
            for name in given:
                if ctx.get_parameter_source(name) is not _HERE:
                    given[name] = getattr(ctx.obj, name)
        broker = Target(**given)
        if ctx.invoked_subcommand is None and kwargs.get("store") is None:
            require_store(broker.url, "url")
        if not broker.url.startswith("tcp:"):
            if broker.curve_key is not None and ctx.get_parameter_source("curve_key") is _HERE:
                raise click.UsageError(f"--curve-key is for tcp:// URLs, and this one is {broker.url}.")
            broker = Target(broker.url, broker.api_key)
        return command(broker, *args, **kwargs)

    with_url = click.option(
        "--url",
        envvar="MINIQ_URL",
        default=DEFAULT_URL,
        show_default=True,
        help="Address of a broker, or folder of a store. [env: MINIQ_URL]",
    )(with_target)
    with_key = click.option(
        "--api-key",
        envvar="MINIQ_API_KEY",
        metavar="KEY",
        help="API key, if the broker requires one. [env: MINIQ_API_KEY]",
    )(with_url)
    return click.option(
        "--curve-key",
        envvar="MINIQ_CURVE_KEY",
        metavar="FILE",
        help="File of a CURVE key, for tcp:// URLs. [env: MINIQ_CURVE_KEY]",
    )(with_key)


def require_store(url: str, field: str) -> None:
    """Refuse an invalid URL, and a folder without a store: a client command never creates one."""
    folder = folder_of(url, field)
    if folder is None:
        return
    from miniq.store.embedded.folder import MARKER

    if not os.path.lexists(os.path.join(folder, MARKER)):
        store = f"rocksdb:{folder}" if folder == url else url
        raise InvalidRequest(
            f"{field}: there is no store in {folder}, and this command does not create one; name the folder of a "
            f"store or the address of a broker, or create it with `miniq serve --store {store}`",
            field=field,
        )


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


SECONDS = Parsed("seconds", _seconds, "a duration such as 30, 0.5, 500ms, 5m, 2h or 14d")
SIZE = Parsed("bytes", _size, "a size such as 1024, 64k or 5m")
RATE = Parsed("number", _rate, "a number above 0")
