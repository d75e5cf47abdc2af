"""Effectively once: whatever is killed, what Spark wrote and what workers acked is every confirmed send, once.

`make faults-spark` does it thirty times over for each victim; here each pipeline loses its driver and its broker once.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from tests.faults.spark import Pipeline, Rig, Victim


@pytest.mark.parametrize(("pipeline", "victim"), [("drain", "driver"), ("transform", "broker")])
def test_every_message_counts_once_though_somebody_is_killed(
    pipeline: Pipeline, victim: Victim, tmp_path: Path
) -> None:
    seed = random.randrange(10**9)
    print(f"seed {seed}")
    verdict = Rig(tmp_path, pipeline, seed).run(victim, 1)
    assert verdict.good, [str(violation) for violation in verdict.violations[:10]]
    assert verdict.sent > 100
