"""`session()`: a Spark session that starts quickly, says nothing, and finds a Java by itself.

Everything here takes a session of yours instead; then nothing of this happens.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from miniq.errors import InvalidRequest, MissingExtra
from miniq.spark.java import Java, cache_folder, find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NEEDED = (4, 2)
"""The first Spark whose Python data sources can do what ours does."""

_LOGGING = """# Made by MiniQ. Errors only; what fails a query is raised to its caller and need not be told twice.
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} spark %p %c{1}: %m%n%ex
# The gateway says what its level is if that is not the root's.
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
"""
_SILENT = (
    "org.apache.spark.executor.Executor",
    "org.apache.spark.scheduler.TaskSetManager",
    "org.apache.spark.sql.execution.datasources.v2",
    "org.apache.spark.sql.execution.streaming",
    "org.apache.spark.sql.execution.python",
    "org.apache.spark.api.python",
    "org.apache.spark.util.Utils",
    "org.apache.spark.sql.connect",
    "org.apache.spark.network",
)


def session(master: str | None = None, *, app: str = "miniq", config: Mapping[str, str] | None = None) -> SparkSession:
    """A session with `format("miniq")` registered; the one that is running, if there is one.

    `master` is as in Spark: `local[*]` (the default), `local[2]`, `spark://HOST:PORT`; or `sc://HOST:PORT` for a
    Spark Connect server. `config` are settings of Spark, and go before ours. Java is found as in `java.py`.
    """
    check_spark()
    from pyspark.sql import SparkSession

    from miniq.spark.source import register

    master = master or "local[*]"
    theirs = dict(config or {})
    for name in theirs:
        if not name.startswith("spark."):
            raise InvalidRequest(f"config: {name!r} is no setting of Spark; they begin with 'spark.'", field="config")
    if master.startswith("sc://"):
        found = _connect(master, theirs)
    elif SparkSession.getActiveSession() is not None:
        found = _built(SparkSession.builder, theirs)
    else:
        java = find_java()
        with _environment(master, java):
            builder = SparkSession.builder.master(master).appName(app)
            found = _built(builder, _settings(master, java, theirs))
    register(found)
    return found


def _built(builder: SparkSession.Builder, config: Mapping[str, str]) -> SparkSession:
    for name, value in config.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def check_spark() -> None:
    """Raise unless a Spark is installed that is new enough."""
    try:
        import pyspark
    except ImportError:
        raise MissingExtra("Spark is not installed: pip install 'miniq[spark]'") from None
    found = tuple(int(part) for part in pyspark.__version__.split(".")[:2])
    if found < NEEDED:
        wanted = ".".join(map(str, NEEDED))
        raise MissingExtra(f"pyspark {pyspark.__version__} is too old, {wanted} is needed: pip install 'miniq[spark]'")


def _connect(url: str, config: Mapping[str, str]) -> SparkSession:
    """A session on a Spark Connect server."""
    from pyspark.sql import SparkSession

    try:
        importlib.import_module("grpc")
    except ImportError:
        raise MissingExtra("Spark Connect needs more of Spark: pip install 'miniq[spark-connect]'") from None
    return _built(SparkSession.builder.remote(url), config)


@contextmanager
def _environment(master: str, java: Java) -> Iterator[None]:
    """What Spark reads from the environment while it starts, as far as the user has not set it."""
    wanted = {"PYSPARK_DRIVER_PYTHON": sys.executable}
    if is_local(master):
        wanted |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    wanted = {name: value for name, value in wanted.items() if name not in os.environ} | {"JAVA_HOME": java.home}
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def is_local(master: str) -> bool:
    """Whether all of Spark runs in this process and its children."""
    return master.startswith("local")


def _settings(master: str, java: Java, theirs: dict[str, str]) -> dict[str, str]:
    """Ours, with the user's on top; options of Java are added to ours."""
    options = [*java.options, f"-Dlog4j2.configurationFile={_logging_file()}"]
    quoted = [f'"{option}"' if " " in option else option for option in options]
    ours = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.driver.extraJavaOptions": " ".join([*quoted, theirs.pop("spark.driver.extraJavaOptions", "")]).strip(),
    }
    if is_local(master):
        ours["spark.sql.shuffle.partitions"] = str(max(2, os.cpu_count() or 2))
    return ours | theirs


def _logging_file() -> str:
    """The file that keeps Spark quiet, in the cache folder."""
    text = _LOGGING
    for place, name in enumerate(_SILENT):
        text += f"logger.s{place}.name = {name}\nlogger.s{place}.level = off\n"
    path = cache_folder() / "log4j2.properties"
    try:
        if path.read_text(encoding="utf-8") == text:
            return str(path)
    except OSError:
        pass
    part = path.with_name(f"{path.name}.{os.getpid()}")
    part.write_text(text, encoding="utf-8")
    os.replace(part, path)
    return str(path)
