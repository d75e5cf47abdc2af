"""Files that an option names, and new files that replace no other."""

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


def name_new(part: str, path: str) -> None:
    """Give a file a name that no other file has; `FileExistsError` if one has it."""
    try:
        os.link(part, path)  # unlike a rename, this fails if the name is taken
    except FileExistsError:
        raise
    except OSError:  # a file system without links
        with open(path, "xb"):  # ours from now on
            os.replace(part, path)
