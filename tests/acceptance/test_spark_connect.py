"""The same over Spark Connect: a client that has no Java talks to a Spark server, which talks to the broker."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("grpc")

import miniq
from tests.acceptance.connect_server import connect_server
from tests.acceptance.without_java import without_java
from tests.server import clear
from tests.serving import Served

PROGRAM = """
import json, sys
from miniq.spark import session
from miniq.spark.pipelines import Run, archive, drain, reprocess, transform

server, broker, folder = sys.argv[1:]
spark = session(server)
options = {"url": broker}
spark.createDataFrame([(n,) for n in range(20)], "n int").selectExpr("named_struct('n', n) as body").write.format(
    "miniq").mode("append").options(queue="numbers", **options).save()
found = {"table": spark.read.format("miniq").options(queue="numbers", **options).load().count()}
run = Run(url=broker, checkpoint=folder + "/transform")
found["transform"] = transform(spark, "numbers", "some", "select body from messages", run=run).messages
found["drain"] = drain(spark, "some", folder + "/out", run=Run(url=broker)).messages
found["archive"] = archive(spark, folder + "/lake", run=Run(url=broker)).messages
found["reprocess"] = reprocess(spark, "orders.dead", fix="'{}'", run=Run(url=broker)).messages
print(json.dumps(found))
spark.stop()
"""


def test_tables_streams_and_pipelines_work_over_connect(server: Served, tmp_path: Path) -> None:
    clear(server.url)
    with miniq.connect(server.url) as broker:
        orders = broker.queue("orders")
        orders.configure(max_receives=1, history="events")
        orders.send("bad")
        orders.release(orders.receive())
        before = broker.history(limit=1)
    with connect_server(tmp_path) as address:
        run = subprocess.run(
            [sys.executable, "-W", "error", "-c", PROGRAM, address, server.url, str(tmp_path)],
            env=without_java(tmp_path),
            capture_output=True,
            text=True,
            timeout=240,
        )
    assert (run.returncode, run.stderr) == (0, "")
    found = json.loads(run.stdout)
    assert found.pop("archive") == before.last - before.first + 1
    assert found == {"table": 20, "transform": 20, "drain": 20, "reprocess": 1}
