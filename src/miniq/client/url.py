"""What a URL means: a server, a store or a folder; and what was probably meant by text that is none of them.

A folder may have any name but one that looks like an address: `127.0.0.1:5000` without its scheme would otherwise
silently become a store of its own, and what is sent to it would never reach the broker. `./127.0.0.1:5000` is a folder.
"""

from __future__ import annotations

import os
import re
from difflib import get_close_matches

from miniq.errors import InvalidRequest

HTTP = ("http", "https")
ZMQ = "tcp"
REMOTE = (*HTTP, ZMQ)
FOLDERS = ("rocksdb", "leveldb")
"""Engines of stores in a folder; a folder alone is one of the first."""
DATABASES = ("postgresql", "postgres", "mongodb", "mongodb+srv")
MEMORY = "memory"
STORES = frozenset({*FOLDERS, *DATABASES, MEMORY})
"""Schemes of stores, on which a broker is opened in this process."""
SCHEMES = (*REMOTE, *FOLDERS, *DATABASES, MEMORY)

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?!\d+(?:/|$))")
"""What stands before a colon that is not the one of a port."""
_NO_COLON = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*);?//")
_ADDRESS = re.compile(
    r"""(?::?//)?
    (?P<host>\[[0-9A-Fa-f:.]+\] | [A-Za-z0-9_.-]*)
    (?: :(?P<port>\d{1,5}) )?
    (?: /.* )?""",
    re.VERBOSE,
)
_ALWAYS_A_HOST = re.compile(r"localhost|\d+\.\d+\.\d+\.\d+|\[.*\]")
_PASSWORD = re.compile(r"(?<=//)([^:/@]*):[^/@]*@")
_ALIASES = {"zmq": ZMQ, "zeromq": ZMQ, "postgres": "postgresql", "pg": "postgresql"}
_HTTP_PORT, _ZMQ_PORTS = "5000", ("5555", "5556", "5557")
_ALL = (
    "http://HOST:PORT, tcp://HOST:PORT, a folder, rocksdb:DIR, leveldb:DIR, postgresql://USER@HOST/DATABASE, "
    "mongodb://HOST/NAME or memory:"
)


def locate(url: str | os.PathLike[str], field: str = "url") -> tuple[str, str]:
    """The scheme of a URL in lower case, and the URL with it; `InvalidRequest` says what would be right."""
    if isinstance(url, os.PathLike):
        return FOLDERS[0], f"{FOLDERS[0]}:{os.fspath(url)}"
    if not isinstance(url, str) or not url:
        raise InvalidRequest(f"{field}: {url!r} is not a URL; use {_ALL}", field=field)
    name, colon, rest = url.partition(":")
    scheme = name.lower() if name.lower() in REMOTE else name
    if not colon or scheme not in SCHEMES:
        if not _is_folder(url):
            raise _refused(url, field)
        return FOLDERS[0], f"{FOLDERS[0]}:{url}"
    if scheme == MEMORY:
        right = not rest
    elif scheme in FOLDERS:
        right = rest != "" and not rest.startswith("//")  # surely not meant to be at the root
    else:
        right = rest.startswith("//") and url == url.strip()
    if not right:
        raise _refused(url, field)
    return scheme, url


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
    """The error, with the nearest URL that would be right."""
    hidden = _PASSWORD.sub(r"\1:***@", url)
    right = _guess(hidden.strip())
    if right is None:
        return InvalidRequest(f"{field}: cannot connect to {hidden!r}; use {_ALL}", field=field)
    folder = ""
    if "://" not in hidden and os.path.basename(hidden) == hidden:
        folder = f", or './{hidden}' for a folder of that name"
    return InvalidRequest(f"{field}: cannot connect to {hidden!r}; use {right!r}{folder}", field=field)


def _guess(url: str) -> str | None:
    """The URL that was probably meant."""
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
    """The known scheme that text begins with, perhaps misspelt, and what follows it."""
    found = _NO_COLON.match(url) or _SCHEME.match(url)
    if found is not None:
        return _nearest(found[1]), url[found.end() :]
    name, colon, rest = url.partition(":")
    return (_nearest(name) if colon and name.lower() in SCHEMES else None), rest


def _nearest(name: str) -> str | None:
    name = name.lower()
    if name in SCHEMES or name in _ALIASES:
        return _ALIASES.get(name, name)
    near = get_close_matches(name, SCHEMES, 1, 0.65)
    return _ALIASES.get(near[0], near[0]) if near else None


def _with_scheme(url: str) -> str | None:
    """An address without a scheme, with the one of the server that listens on such a port."""
    if url.isdigit():
        url = f":{url}"
    found = _ADDRESS.fullmatch(url)
    if found is None or (found["port"] is None and _ALWAYS_A_HOST.fullmatch(found["host"]) is None):
        return None
    port = found["port"] or _HTTP_PORT
    return f"{ZMQ if port in _ZMQ_PORTS else 'http'}://{found['host'] or '127.0.0.1'}:{port}"
