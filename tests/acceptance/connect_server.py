"""A Spark Connect server on this machine, as a process of its own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pyspark

from miniq.spark.java import find_java
from tests.acceptance.shell import environment

PATIENCE = 90


@contextmanager
def connect_server(folder: Path) -> Iterator[str]:
    """A server on a free loopback port, with the jars that PySpark brings; its `sc://` address."""
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    home = Path(pyspark.__file__).parent
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.master": "local[2]",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.extraJavaOptions": " ".join(find_java().options),
    }
    command = [str(home / "bin" / "spark-submit"), "--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    for name, value in settings.items():
        command += ["--conf", f"{name}={value}"]
    env = environment(JAVA_HOME=find_java().home, SPARK_LOCAL_IP="127.0.0.1", PYSPARK_PYTHON=sys.executable)
    with open(folder / "connect.log", "wb") as log:
        process = subprocess.Popen(
            [*command, "spark-internal"], env=env, cwd=folder, stdout=log, stderr=log, start_new_session=True
        )
    try:
        until = time.monotonic() + PATIENCE
        while not is_open(port):
            assert process.poll() is None, (folder / "connect.log").read_text()
            assert time.monotonic() < until, (folder / "connect.log").read_text()
            time.sleep(0.1)
        yield f"sc://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(30)


def is_open(port: int) -> bool:
    with closing(socket.socket()) as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
