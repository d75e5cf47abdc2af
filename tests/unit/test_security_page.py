"""docs/security.md names the test for each promise: they are there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_test_that_the_page_names_exists() -> None:
    named = set(re.findall(r"`(test_[a-z0-9_]+)`", (ROOT / "docs" / "security.md").read_text()))
    there = {
        name
        for path in (ROOT / "tests").rglob("*.py")
        for name in re.findall(r"def (test_[a-z0-9_]+)", path.read_text())
    }
    assert named - there == set()
    assert len(named) > 20
