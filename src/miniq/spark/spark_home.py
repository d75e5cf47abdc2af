"""A SPARK_HOME without the archive that Python workers would import PySpark from.

Every worker of a local session puts `python/lib/pyspark.zip` of its SPARK_HOME first in its path, and imports from it
without compiled files, although the same modules are installed beside it. A folder of links to all the rest makes
workers use the installed ones, which costs a quarter of the CPU time at each start of a worker.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

from miniq.spark.java import cache_folder

LINKED = ("bin", "jars", "sbin", "data", "RELEASE")


def quick_home() -> str | None:
    """The folder, which is created if necessary; None where PySpark is not installed with its Java part."""
    import pyspark

    installed = Path(pyspark.__file__).resolve().parent
    if not (installed / "jars").is_dir() or not (installed / "bin" / "spark-submit").exists():
        return None
    name = hashlib.sha256(f"{pyspark.__version__} {installed} {LINKED}".encode()).hexdigest()[:16]
    folder = cache_folder() / f"spark-{name}"
    if not (folder / "jars").is_dir():
        try:
            _create(folder, installed)
        except OSError:  # no links on this file system
            return None
    return str(folder)


def _create(folder: Path, installed: Path) -> None:
    """Write the folder. It appears atomically, also when several processes create it at once."""
    with tempfile.TemporaryDirectory(prefix=".spark-", dir=folder.parent) as scratch:
        home = Path(scratch) / "home"
        home.mkdir()
        for name in LINKED:
            if (installed / name).exists():
                (home / name).symlink_to(installed / name)
        try:
            os.rename(home, folder)
        except OSError:
            if not (folder / "jars").is_dir():
                raise
