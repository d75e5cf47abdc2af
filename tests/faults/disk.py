"""A disk whose power can be cut: ext4 in a file on a loop device, shut down by ioctl without flushing its journal.

What was not fsynced before is gone when it is mounted again, as after a real power loss. Needs root.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

_SHUTDOWN = 0x8004587D
_NO_FLUSH = 2


class Disk:
    def __init__(self, folder: Path, megabytes: int = 256) -> None:
        self.image = folder / "disk.img"
        self.mount = folder / "disk"
        self.mount.mkdir()
        with open(self.image, "wb") as file:
            file.truncate(megabytes << 20)
        _run("mkfs.ext4", "-q", "-F", str(self.image))

    def plug_in(self) -> None:
        _run("mount", "-o", "loop", str(self.image), str(self.mount))

    def cut_power(self) -> None:
        """From now on every write fails; what was not on disk is lost."""
        folder = os.open(self.mount, os.O_RDONLY)
        try:
            fcntl.ioctl(folder, _SHUTDOWN, struct.pack("I", _NO_FLUSH))
        finally:
            os.close(folder)

    def pull_out(self) -> None:
        _run("umount", str(self.mount))


@cache
def lacks() -> str:
    """What such a disk needs and this machine does not have, or nothing. Whether root may mount is seen by trying."""
    if os.geteuid() != 0:
        return "needs root"
    for tool in ("mkfs.ext4", "mount", "umount"):
        if shutil.which(tool) is None:
            return f"needs {tool}"
    with tempfile.TemporaryDirectory(prefix="miniq-disk-") as folder:
        try:
            with disk(Path(folder), megabytes=16) as drive:
                drive.cut_power()
        except subprocess.CalledProcessError as error:
            return f"needs loop devices: {error.stderr.decode().strip()}"
        except OSError as error:
            return f"needs a file system that can be shut down: {error}"
    return ""


@contextlib.contextmanager
def disk(folder: Path, megabytes: int = 256) -> Iterator[Disk]:
    """A disk that is plugged in."""
    made = Disk(folder, megabytes)
    made.plug_in()
    try:
        yield made
    finally:
        subprocess.run(["umount", "-l", str(made.mount)], check=False, capture_output=True)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
