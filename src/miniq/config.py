"""Loads a broker's options. Flags override the environment, which overrides a TOML file, which overrides the defaults.

`MINIQ_PORT` is the option `port`, `MINIQ_LIMITS__BODY_BYTES` is `limits.body_bytes`; a file uses the same names, with
`[limits]` as a table. An unknown option or a value of the wrong type is an error that shows the name, the value and
what is allowed: a misspelt option must not silently fall back to its default.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from typing import Any

from miniq.errors import InvalidRequest
from miniq.files import check_regular
from miniq.options import PREFIX, Options, assembled, checked, dotted

NOT_OPTIONS = frozenset(
    f"{PREFIX}{name}"
    for name in ("URL", "API_KEY", "CURVE_KEY", "CA", "CLIENT_CERT", "CLIENT_KEY", "CONFIG", "LOG_LEVEL")
)
"""Variables that the command line reads; they are not options of a broker."""


def load(
    flags: Mapping[str, Any] | None = None, environ: Mapping[str, str] | None = None, file: str | None = None
) -> Options:
    """Merge all sources into the options of a broker. Keys of `flags` are dotted names; None means not given."""
    given: dict[str, Any] = {}
    if file is not None:
        given |= read_file(file)
    given |= read_environment(os.environ if environ is None else environ)
    for name, value in (flags or {}).items():
        if value is not None:
            given[name] = checked(name, value, f"--{name.replace('_', '-')}")
    return assembled(given)


def read_file(path: str) -> dict[str, Any]:
    """The options that a TOML file sets, by dotted name."""
    check_regular(path, "config")
    try:
        with open(path, "rb") as file:
            document = tomllib.load(file)
    except OSError as error:
        raise InvalidRequest(f"config: cannot read {path}: {error.strerror}", field="config") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"config: {path} is not valid TOML: {error}", field="config") from None
    return {name: checked(name, value, f"{path}: {name}") for name, value in dotted(document).items()}


def read_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    """The options that the environment sets, by dotted name. An empty variable counts as unset."""
    values: dict[str, Any] = {}
    for variable, value in sorted(environ.items()):
        if variable.startswith(PREFIX) and variable not in NOT_OPTIONS and value:
            name = variable.removeprefix(PREFIX).lower().replace("__", ".")
            values[name] = checked(name, value, variable, text=True)
    return values
