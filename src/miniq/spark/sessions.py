"""`session()`: a Spark session that starts quickly, logs errors only, and finds a Java by itself.

It is optional: the data source and all pipelines also work with any other session.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import resources
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from miniq.errors import InvalidRequest, MissingExtra, install
from miniq.spark.java import Java, cache_folder, find_java
from miniq.spark.spark_home import quick_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MINIMUM_VERSION = (4, 2)
"""The first Spark whose Python data source API has all that ours needs."""


def session(master: str | None = None, *, app: str = "miniq", config: Mapping[str, str] | None = None) -> SparkSession:
    """A session with `format("miniq")` registered; the active one, if there is one.

    `master` is as in Spark: `local[*]` (the default), `local[2]`, `spark://HOST:PORT`; or `sc://HOST:PORT` for a
    Spark Connect server. `config` holds Spark settings, which override ours. `java.py` says which Java is used.
    """
    check_spark()
    from pyspark.sql import SparkSession

    from miniq.spark.source import register

    master = master or "local[*]"
    user_config: dict[str, Any] = dict(config or {})
    for name in user_config:
        if not name.startswith("spark."):
            raise InvalidRequest(
                f"config: {name!r} is not a Spark setting; their names begin with 'spark.'", field="config"
            )
    if master.startswith("sc://"):
        if find_spec("grpc") is None:
            raise MissingExtra(f"Spark Connect needs more packages: {install('spark-connect')}")
        spark = SparkSession.builder.remote(master).config(map=user_config).getOrCreate()
    elif SparkSession.getActiveSession() is not None:
        spark = SparkSession.builder.config(map=user_config).getOrCreate()
    else:
        java = find_java()
        builder = SparkSession.builder.master(master).appName(app).config(map=_settings(master, java, user_config))
        with _environment(master, java, user_config.get("spark.pyspark.python")):
            spark = builder.getOrCreate()
    register(spark)
    return spark


def is_first_start(master: str) -> bool:
    """Whether a session would be the first one on this Java and Spark, which takes longer."""
    return master.startswith("local") and any("ArchiveClassesAtExit" in option for option in find_java().options)


def check_spark() -> None:
    """Raise unless a recent enough Spark is installed."""
    try:
        import pyspark
    except ImportError:
        raise MissingExtra(f"Spark is not installed: {install('spark')}") from None
    installed = tuple(int(part) for part in pyspark.__version__.split(".")[:2])
    if installed < MINIMUM_VERSION:
        minimum = ".".join(map(str, MINIMUM_VERSION))
        raise MissingExtra(
            f"pyspark {pyspark.__version__} is too old, {minimum} or later is required: {install('spark')}"
        )


@contextmanager
def _environment(master: str, java: Java, python: str | None) -> Iterator[None]:
    """Set the environment variables that Spark reads at start, except those that the user has set. The Python of the
    workers is one of them: a session, unlike `spark-submit`, ignores the setting for it."""
    variables = {"PYSPARK_DRIVER_PYTHON": sys.executable}
    if master.startswith("local"):
        if python is None and "PYSPARK_PYTHON" not in os.environ and (home := quick_home()) is not None:
            variables["SPARK_HOME"] = home
        variables |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    variables = {name: value for name, value in variables.items() if name not in os.environ}
    if python is not None:
        variables["PYSPARK_PYTHON"] = python
    variables["JAVA_HOME"] = java.home
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _settings(master: str, java: Java, user_config: dict[str, Any]) -> dict[str, Any]:
    """Our Spark settings, overridden by the user's; Java options are appended to ours."""
    options = [*java.options, f"-Dlog4j2.configurationFile={_logging_file()}"]
    quoted = [f'"{option}"' if " " in option else option for option in options]
    defaults = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.driver.extraJavaOptions": " ".join(
            [*quoted, user_config.pop("spark.driver.extraJavaOptions", "")]
        ).strip(),
    }
    if master.startswith("local"):
        defaults["spark.sql.shuffle.partitions"] = str(max(2, os.cpu_count() or 2))
    return defaults | user_config


def _logging_file() -> str:
    """Write the log4j configuration to the cache folder, and return its path: this package may be in an archive."""
    path = cache_folder() / "log4j2.properties"
    part = path.with_name(f"{path.name}.{os.getpid()}")
    part.write_bytes(resources.files(__package__).joinpath(path.name).read_bytes())
    os.replace(part, path)
    return str(path)
