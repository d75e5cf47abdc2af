"""The options of a broker: from flags, then the environment, then a TOML file, then the defaults.

`MINIQ_PORT` is the option `port`, `MINIQ_LIMITS__BODY_BYTES` is `limits.body_bytes`; a file has the same names, with
`[limits]` as a table. An unknown option, or a value of the wrong type, is refused with its name, its value
and what would be valid: a misspelt option must not silently become the default.
"""

from __future__ import annotations

import math
import os
import tomllib
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Struct

from miniq.errors import InvalidRequest
from miniq.options import Limits, Options

PREFIX = "MINIQ_"
NOT_OPTIONS = frozenset({"MINIQ_URL", "MINIQ_API_KEY", "MINIQ_CONFIG", "MINIQ_CURVE_KEY", "MINIQ_LOG_LEVEL"})
"""Variables of the command line that are not options of a broker."""

PORTS = frozenset({"port", "command_port", "producer_port", "consumer_port"})
MAY_BE_ZERO = frozenset(
    {*PORTS, "min_free_bytes", "history_retention", "history_max_bytes", "upkeep_interval", "busy_poll", "limits.wait"}
)
"""Numbers that may be zero. All others are limits that would refuse everything at zero."""
HIGHEST_PORT = 65535


def load(
    flags: Mapping[str, Any] | None = None, environ: Mapping[str, str] | None = None, file: str | None = None
) -> Options:
    """The options of a broker. Keys of `flags` are dotted names; a flag that is None was not given."""
    given: dict[str, Any] = {}
    if file is not None:
        given |= read_file(file)
    given |= read_environment(os.environ if environ is None else environ)
    for name, value in (flags or {}).items():
        if value is not None:
            given[name] = _checked(name, f"--{name.replace('_', '-')}", value, text=False)
    return _assembled(given)


def names() -> dict[str, Any]:
    """Every option by its dotted name, with its type."""
    return dict(_leaves(Options, ""))


def read_file(path: str) -> dict[str, Any]:
    """The options that a TOML file gives, by dotted name."""
    try:
        with open(path, "rb") as file:
            document = tomllib.load(file)
    except OSError as error:
        raise InvalidRequest(f"config: cannot read {path}: {error.strerror}", field="config") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"config: {path} is not TOML: {error}", field="config") from None
    found: dict[str, Any] = {}
    for name, value in document.items():
        if name == "limits" and isinstance(value, dict):
            found |= {f"limits.{inner}": it for inner, it in value.items()}
        else:
            found[name] = value
    return {name: _checked(name, f"{path}: {name}", value, text=False) for name, value in found.items()}


def read_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    """The options that the environment gives, by dotted name. A variable that is empty was not given."""
    found: dict[str, Any] = {}
    for variable, value in sorted(environ.items()):
        if variable.startswith(PREFIX) and variable not in NOT_OPTIONS and value:
            name = variable.removeprefix(PREFIX).lower().replace("__", ".")
            found[name] = _checked(name, variable, value, text=True)
    return found


def _checked(name: str, shown: str, value: Any, *, text: bool) -> Any:
    """A value in the type of its option; `text` says that it may have to be read from text."""
    known = names()
    if name not in known:
        raise InvalidRequest(f"{shown}: no such option ({_show(value)}); {_nearest(name, shown, known)}", field=name)
    kind = known[name]
    try:
        made = msgspec.convert(value.lower() if text and kind is bool else value, kind, strict=not text)
    except msgspec.ValidationError:
        raise InvalidRequest(f"{shown}: {_show(value)} is invalid; use {_wanted(name, kind)}", field=name) from None
    if not _in_range(name, made):
        raise InvalidRequest(f"{shown}: {_show(value)} is out of range; use {_wanted(name, kind)}", field=name)
    return made


def _nearest(name: str, shown: str, known: Mapping[str, Any]) -> str:
    """The option that was probably meant, written as the wrong one was; otherwise all that there are."""
    near = get_close_matches(name, known, 1, 0.75)
    if not near:
        return f"there are {', '.join(known)}"
    if shown.startswith(PREFIX):
        return f"did you mean {PREFIX}{near[0].upper().replace('.', '__')}?"
    return f"did you mean {near[0]}?"


def _in_range(name: str, value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return True
    if name in PORTS and value > HIGHEST_PORT:
        return False
    return math.isfinite(value) and (value > 0 or (value == 0 and name in MAY_BE_ZERO))


def _assembled(given: dict[str, Any]) -> Options:
    """The record. What two options say must fit together."""
    inner = {name.removeprefix("limits."): value for name, value in given.items() if name.startswith("limits.")}
    outer = {name: value for name, value in given.items() if not name.startswith("limits.")}
    if outer.get("port") == 0:
        # Port 0 is for running beside other brokers, so the ports that were not given become free ones too.
        outer = dict.fromkeys(PORTS, 0) | outer
    options = Options(**outer, limits=Limits(**inner))
    for name, path in (("tls_cert", options.tls_cert), ("tls_key", options.tls_key)):
        if path is not None and not os.access(path, os.R_OK):
            raise InvalidRequest(f"{name}: cannot read {path!r}; name a PEM file", field=name)
    if options.tls_key is not None and options.tls_cert is None:
        raise InvalidRequest("tls_key: given without tls_cert; give both, or the certificate alone", field="tls_key")
    return options


def _leaves(kind: type[Struct], prefix: str) -> Iterator[tuple[str, Any]]:
    hints = get_type_hints(kind)
    for field in kind.__struct_fields__:
        hint = hints[field]
        if isinstance(hint, type) and issubclass(hint, Struct):
            yield from _leaves(hint, f"{field}.")
        else:
            yield prefix + field, hint


def _wanted(name: str, kind: Any) -> str:
    """What an option takes, in words."""
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
