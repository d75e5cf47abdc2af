"""An environment in which no Java can be found, on a machine that may have one."""

from __future__ import annotations

import os
from pathlib import Path

from tests.acceptance.shell import environment


def without_java(folder: Path) -> dict[str, str]:
    """The environment with a PATH that has all programs but Java, and no JAVA_HOME."""
    programs = folder / "programs"
    programs.mkdir()
    for place in os.environ["PATH"].split(os.pathsep):
        if not os.path.isdir(place):
            continue
        for entry in os.scandir(place):
            link = programs / entry.name
            if not entry.name.startswith("java") and not link.is_symlink():
                link.symlink_to(entry.path)
    found = environment(PATH=str(programs))
    found.pop("JAVA_HOME", None)
    return found
