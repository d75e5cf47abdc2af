"""Files that an option names."""

from __future__ import annotations

import os
import stat

from miniq.errors import InvalidRequest

_KINDS = {stat.S_IFDIR: "a directory", stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket"}


def check_regular(path: str, field: str) -> None:
    """Raise if a path leads to something other than a file: a directory, a device, or a pipe, which would
    block its reader until something writes to it. A path that does not exist is left to the caller."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return
    if not stat.S_ISREG(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "a device")
        raise InvalidRequest(f"{field}: {path!r} is {kind}; use the path of a file", field=field)
