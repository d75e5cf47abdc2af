"""`make demo`, as it is: a crash, failing workers, dead letters, Spark, and every promise kept."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from tests.acceptance.shell import environment

PROMISES = 11


def test_the_demo_keeps_every_promise(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "miniq.demo"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment(),
        timeout=280,
    )
    assert (ended.returncode, ended.stderr) == (0, ""), ended.stdout + ended.stderr
    assert "killed with -9" in ended.stdout
    assert ended.stdout.count("\nkept ") == PROMISES
    assert "BROKEN" not in ended.stdout
    report = ended.stdout.splitlines()[-1].removeprefix("report: ")
    assert Path(report) == tmp_path / "miniq-demo" / "report.html"
    assert ">Throughput<" in Path(report).read_text(encoding="utf-8")
    assert [path.name for path in tmp_path.iterdir()] == ["miniq-demo"]
