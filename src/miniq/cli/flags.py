"""What many commands share on their command line: the broker they talk to, durations, sizes, `--json`."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable
from typing import Any, TypeVar

import click
from msgspec import Struct

from miniq.client._sync.client import Client
from miniq.client.connection import connect
from miniq.client.url import REMOTE, folder_of, locate
from miniq.errors import InvalidRequest

R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_URL = "http://127.0.0.1:5000"
SOON = 0.5
"""Seconds for which calls are repeated while a broker is unreachable, where a person waits for them."""
_HERE = click.core.ParameterSource.COMMANDLINE
_UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SIZES = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3}


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
        """A client, to be closed by the caller. Calls are repeated for `patience` seconds while the broker is
        unreachable; one that is unreachable from the start is reported at once."""
        if not self.is_remote:
            return connect(self.url)
        if patience > SOON:
            with self.open() as probe:
                probe.queues()
        options: dict[str, Any] = {"retry": patience, "api_key": self.api_key}
        if self.curve_key is not None:
            options["curve_key"] = self.curve_key
        if timeout is not None:
            options["timeout"] = timeout
        return connect(self.url, **options)

    def environment(self) -> dict[str, str]:
        """The environment of a process that talks to the same broker. Secrets do not belong on a command line, which
        every user of the machine can read."""
        found = dict(os.environ) | {"MINIQ_URL": self.url}
        if self.api_key is not None:
            found["MINIQ_API_KEY"] = self.api_key
        if self.curve_key is not None:
            found["MINIQ_CURVE_KEY"] = self.curve_key
        return found


def target(command: Callable[..., R]) -> Callable[..., R]:
    """Give a command `--url`, `--api-key` and `--curve-key`, and pass it the broker that they name."""

    @functools.wraps(command)
    def with_target(*args: Any, url: str, api_key: str | None, curve_key: str | None, **kwargs: Any) -> R:
        ctx = click.get_current_context()
        found = _inherited(ctx, Target(url, api_key or None, curve_key or None))
        if ctx.invoked_subcommand is None and kwargs.get("store") is None:
            require_store(found.url, "url")
        if not found.url.startswith("tcp:"):
            if found.curve_key is not None and ctx.get_parameter_source("curve_key") is _HERE:
                raise click.UsageError(f"--curve-key is for tcp:// URLs, and this one is {found.url}.")
            found = Target(found.url, found.api_key)
        return command(found, *args, **kwargs)

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
    """Refuse a URL that is none, and a folder without a store: a client command never creates one."""
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


def _inherited(ctx: click.Context, given: Target) -> Target:
    """`miniq queues --url URL create` counts as well as `miniq queues create --url URL`."""
    above = ctx.obj
    if not isinstance(above, Target):
        return given
    return Target(
        given.url if ctx.get_parameter_source("url") is _HERE else above.url,
        given.api_key if ctx.get_parameter_source("api_key") is _HERE else above.api_key,
        given.curve_key if ctx.get_parameter_source("curve_key") is _HERE else above.curve_key,
    )


def as_json(command: F) -> F:
    """Give a command `--json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON, one object per line.")(command)


def quiet_json(command: F) -> F:
    """Give a command `--json` for its summary."""
    return click.option("--json", "as_json", is_flag=True, help="Print the summary as one JSON object.")(command)


class Seconds(click.ParamType):  # type: ignore[type-arg]
    """A duration: `30`, `0.5`, `500ms`, `5m`, `2h`, `14d`."""

    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, int | float):
            return float(value)
        found = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)\s*(ms|s|m|h|d)?", value.strip())
        if found is None:
            self.fail(f"{value!r} is not a duration such as 30, 0.5, 500ms, 5m, 2h or 14d", param, ctx)
        return float(found[1]) * _UNITS[found[2] or ""]


class Size(click.ParamType):  # type: ignore[type-arg]
    """A number of bytes: `1024`, `64k`, `5m`."""

    name = "bytes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        found = re.fullmatch(r"(\d+)\s*([kmg]?)(?:i?b)?", value.strip().lower())
        if found is None:
            self.fail(f"{value!r} is not a size such as 1024, 64k or 5m", param, ctx)
        return int(found[1]) * _SIZES[found[2]]


class Rate(click.ParamType):  # type: ignore[type-arg]
    """A number per second, above 0."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            rate = float(value)
        except ValueError:
            rate = 0.0
        if not 0 < rate < float("inf"):
            self.fail(f"{value!r} is not a number above 0", param, ctx)
        return rate


SECONDS = Seconds()
SIZE = Size()
RATE = Rate()
