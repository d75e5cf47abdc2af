"""Loads a broker's options. Flags override the environment, which overrides a TOML file, which overrides the defaults.

`MINIQ_PORT` is the option `port`, `MINIQ_LIMITS__BODY_BYTES` is `limits.body_bytes`; a file uses the same names, with
`[limits]` as a table. An unknown option or a value of the wrong type is an error that shows the name, the value and
what is allowed: a misspelt option must not silently fall back to its default.
"""

from __future__ import annotations

import math
import os
import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from miniq.errors import InvalidRequest
from miniq.options import Limits, Options

PREFIX = "MINIQ_"
NOT_OPTIONS = frozenset({"MINIQ_URL", "MINIQ_API_KEY", "MINIQ_CONFIG", "MINIQ_CURVE_KEY", "MINIQ_LOG_LEVEL"})
"""Variables that the command line reads; they are not options of a broker."""

PORTS = frozenset({"port", "command_port", "producer_port", "consumer_port"})
MAY_BE_ZERO = frozenset(
    {*PORTS, "min_free_bytes", "history_retention", "history_max_bytes", "upkeep_interval", "busy_poll", "limits.wait"}
)
"""Numbers for which zero is meaningful. All others are limits; zero would reject everything."""
HIGHEST_PORT = 65535


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
            given[name] = _checked(name, f"--{name.replace('_', '-')}", value, text=False)
    return _assembled(given)


def names() -> dict[str, Any]:
    """The type of every option, by dotted name."""
    options = {name: kind for name, kind in get_type_hints(Options).items() if name != "limits"}
    return options | {f"limits.{name}": kind for name, kind in get_type_hints(Limits).items()}


def read_file(path: str) -> dict[str, Any]:
    """The options that a TOML file sets, by dotted name."""
    try:
        with open(path, "rb") as file:
            document = tomllib.load(file)
    except OSError as error:
        raise InvalidRequest(f"config: cannot read {path}: {error.strerror}", field="config") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"config: {path} is not valid TOML: {error}", field="config") from None
    values: dict[str, Any] = {}
    for name, value in document.items():
        if name == "limits" and isinstance(value, dict):
            values |= {f"limits.{limit}": number for limit, number in value.items()}
        else:
            values[name] = value
    return {name: _checked(name, f"{path}: {name}", value, text=False) for name, value in values.items()}


def read_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    """The options that the environment sets, by dotted name. An empty variable counts as unset."""
    values: dict[str, Any] = {}
    for variable, value in sorted(environ.items()):
        if variable.startswith(PREFIX) and variable not in NOT_OPTIONS and value:
            name = variable.removeprefix(PREFIX).lower().replace("__", ".")
            values[name] = _checked(name, variable, value, text=True)
    return values


def _checked(name: str, origin: str, value: Any, *, text: bool) -> Any:
    """Convert a value to its option's type and check its range. `origin` is how the user spelt the option; with `text`
    the value is a string to parse."""
    known = names()
    if name not in known:
        raise InvalidRequest(f"{origin}: no such option ({_show(value)}); {_nearest(name, origin, known)}", field=name)
    kind = known[name]
    try:
        converted = msgspec.convert(value.lower() if text and kind is bool else value, kind, strict=not text)
    except msgspec.ValidationError:
        raise InvalidRequest(f"{origin}: {_show(value)} is invalid; use {_allowed(name, kind)}", field=name) from None
    if not _in_range(name, converted):
        raise InvalidRequest(f"{origin}: {_show(value)} is out of range; use {_allowed(name, kind)}", field=name)
    return converted


def _nearest(name: str, origin: str, known: Mapping[str, Any]) -> str:
    """The most similar option, in the notation of the user; if there is none, all options."""
    near = get_close_matches(name, known, 1, 0.75)
    if not near:
        return f"there are {', '.join(known)}"
    if origin.startswith(PREFIX):
        return f"did you mean {PREFIX}{near[0].upper().replace('.', '__')}?"
    return f"did you mean {near[0]}?"


def _in_range(name: str, value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return True
    if name in PORTS and value > HIGHEST_PORT:
        return False
    return math.isfinite(value) and (value > 0 or (value == 0 and name in MAY_BE_ZERO))


def _assembled(given: dict[str, Any]) -> Options:
    """Build the record, and check options that depend on each other."""
    limits = {name.removeprefix("limits."): value for name, value in given.items() if name.startswith("limits.")}
    values = {name: value for name, value in given.items() if not name.startswith("limits.")}
    if values.get("port") == 0:
        # A broker on any free port is meant to run beside others, so its unset ports must not be the fixed defaults.
        values = dict.fromkeys(PORTS, 0) | values
    options = Options(**values, limits=Limits(**limits))
    for name, path in (("tls_cert", options.tls_cert), ("tls_key", options.tls_key)):
        if path is not None and not os.access(path, os.R_OK):
            raise InvalidRequest(f"{name}: cannot read {path!r}; use the path of a PEM file", field=name)
    if options.tls_key is not None and options.tls_cert is None:
        raise InvalidRequest("tls_key: given without tls_cert; set both, or tls_cert alone", field="tls_key")
    return options


def _allowed(name: str, kind: Any) -> str:
    """The values that an option accepts, in words."""
    if get_origin(kind) is Literal:
        return " or ".join(get_args(kind))
    if kind is bool:
        return "true or false"
    if name in PORTS:
        return f"a whole number from 0 to {HIGHEST_PORT}"
    if kind in (int, float):
        number = "a whole number" if kind is int else "a number"
        return f"{number} of at least 0" if name in MAY_BE_ZERO else f"{number} above 0"
    return "text"


def _show(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
