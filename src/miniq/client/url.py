"""Whether a URL is that of a server, a store or a folder, and suggestions for those that are none.

A folder's name must not look like an address: `127.0.0.1:5000` without a scheme would otherwise silently become a store
of its own, and messages sent to it would never reach the broker. `./127.0.0.1:5000` is a folder.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from difflib import get_close_matches

from miniq.errors import InvalidRequest
from miniq.store_urls import FORMS, schemes
from miniq.store_urls import without_password as without_password

HTTP = ("http", "https")
ZMQ = "tcp"
REMOTE = (*HTTP, ZMQ)
FOLDERS = schemes("folder")
"""Engines of stores in a folder; the first is the default."""
DATABASES = schemes("database")
(MEMORY,) = schemes("memory")
STORES = frozenset({*FOLDERS, *DATABASES, MEMORY})
"""Schemes of stores, for a broker in this process."""
SCHEMES = (*REMOTE, *FOLDERS, *DATABASES, MEMORY)

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?!\d+(?:/|$))")
"""Text before a colon that is not followed by a port."""
_NO_COLON = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*);?//")
_ADDRESS = re.compile(
    r"""(?::?//)?
    (?P<host>\[[0-9A-Fa-f:.]+\] | [A-Za-z0-9_.-]*)
    (?: :(?P<port>\d{1,5}) )?
    (?: /.* )?""",
    re.VERBOSE,
)
_ALWAYS_A_HOST = re.compile(r"localhost|\d+\.\d+\.\d+\.\d+|\[.*\]")
_ALIASES = {"zmq": ZMQ, "zeromq": ZMQ, "postgres": "postgresql", "pg": "postgresql"}
_HTTP_PORT, _ZMQ_PORTS = "5000", ("5555", "5556", "5557")
_ALL_STORES = f"a folder, {FORMS}"
_ALL = f"http://HOST:PORT, tcp://HOST:PORT, {_ALL_STORES}"


def locate(url: str | os.PathLike[str], field: str = "url") -> tuple[str, str]:
    """The scheme of a URL, and the complete URL; `InvalidRequest` suggests a valid one. `~` is a home folder."""
    if isinstance(url, os.PathLike):
        url = os.fspath(url)
        if isinstance(url, str) and "\0" not in url:
            return FOLDERS[0], f"{FOLDERS[0]}:{os.path.expanduser(url)}"
    if not isinstance(url, str) or not url or "\0" in url:
        raise InvalidRequest(f"{field}: {url!r} is not a URL; use {_ALL}", field=field)
    name, colon, rest = url.partition(":")
    scheme = name.lower() if name.lower() in REMOTE else name
    if not colon or scheme not in SCHEMES:
        if not _is_folder(url):
            raise _refused(url, field)
        return FOLDERS[0], f"{FOLDERS[0]}:{os.path.expanduser(url)}"
    if scheme == MEMORY:
        right = not rest
    elif scheme in FOLDERS:
        right = rest != "" and not rest.startswith("//")  # `rocksdb://data` is not meant to be the folder //data
    else:
        right = rest.startswith("//") and url == url.strip()
    if not right:
        raise _refused(url, field)
    return scheme, f"{scheme}:{os.path.expanduser(rest)}" if scheme in FOLDERS else url


def store_of(url: str, field: str) -> str:
    """The complete URL of a store; `InvalidRequest` if it is none, such as that of a server."""
    with suppress(InvalidRequest):
        scheme, whole = locate(url, field)
        if scheme in STORES:
            return whole
    raise InvalidRequest(f"{field}: {without_password(url)!r} is not a store; use {_ALL_STORES}", field=field)


def folder_of(url: str | os.PathLike[str], field: str = "url") -> str | None:
    """The folder that a URL names; None for servers, databases and memory."""
    scheme, whole = locate(url, field)
    return whole.partition(":")[2] if scheme in FOLDERS else None


def _is_folder(url: str) -> bool:
    first = url.partition("/")[0]
    if first in ("", ".", "..") and not url.startswith("//"):
        return True
    if ":" in first or url.startswith("//"):
        return re.match(r"[A-Za-z]:[\\/]", url) is not None  # a drive
    if _NO_COLON.match(url) is not None and _nearest(first.rstrip(";")) is not None:
        return False
    return _ALWAYS_A_HOST.fullmatch(first) is None and not url.isdigit() and url != MEMORY and url == url.strip()


def _refused(url: str, field: str) -> InvalidRequest:
    """The error, with a suggestion."""
    hidden = without_password(url)
    right = _guess(hidden.strip())
    if right is None:
        return InvalidRequest(f"{field}: cannot connect to {hidden!r}; use {_ALL}", field=field)
    folder = ""
    if "://" not in hidden and os.path.basename(hidden) == hidden:
        folder = f", or './{hidden}' for a folder of that name"
    return InvalidRequest(f"{field}: cannot connect to {hidden!r}; use {right!r}{folder}", field=field)


def _guess(url: str) -> str | None:
    """The URL that was probably meant, None if there is no good guess."""
    if url == MEMORY:
        return f"{MEMORY}:"
    scheme, rest = _scheme_in(url)
    if scheme is None:
        return _with_scheme(url)
    if scheme == MEMORY:
        return f"{MEMORY}:"
    rest = rest.lstrip("/")
    if not rest:
        return None
    if scheme in FOLDERS:
        return f"{scheme}:{rest}"
    return f"{scheme}://127.0.0.1:{rest}" if rest.isdigit() else f"{scheme}://{rest}"


def _scheme_in(url: str) -> tuple[str | None, str]:
    """The known scheme at the start of a text, perhaps misspelt, and the rest."""
    match = _NO_COLON.match(url) or _SCHEME.match(url)
    if match is not None:
        return _nearest(match[1]), url[match.end() :]
    name, colon, rest = url.partition(":")
    return (_nearest(name) if colon and name.lower() in SCHEMES else None), rest


def _nearest(name: str) -> str | None:
    name = name.lower()
    if name in SCHEMES or name in _ALIASES:
        return _ALIASES.get(name, name)
    near = get_close_matches(name, SCHEMES, 1, 0.65) if name != "ftp" else []  # no misspelt tcp
    return _ALIASES.get(near[0], near[0]) if near else None


def _with_scheme(url: str) -> str | None:
    """An address without a scheme, with the scheme of the server that usually listens on its port."""
    if url.isdigit():
        url = f":{url}"
    address = _ADDRESS.fullmatch(url)
    if address is None or (address["port"] is None and _ALWAYS_A_HOST.fullmatch(address["host"]) is None):
        return None
    port = address["port"] or _HTTP_PORT
    return f"{ZMQ if port in _ZMQ_PORTS else 'http'}://{address['host'] or '127.0.0.1'}:{port}"
