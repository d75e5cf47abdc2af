"""The README's Python blocks run as they stand, each in a process and an empty folder of its own."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = [
    pytest.param(match[1], id=f"line {README.count(chr(10), 0, match.start()) + 1}")
    for match in re.finditer(r"^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
]


@pytest.mark.parametrize("code", BLOCKS)
def test_python_block_of_the_readme_runs(code: str, tmp_path: Path) -> None:
    # Warnings are errors here as in all tests.
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert (run.returncode, run.stderr) == (0, "")


def test_there_are_python_blocks() -> None:
    assert len(BLOCKS) >= 5


@pytest.mark.parametrize("page", ["README.md", *sorted(str(p.relative_to(ROOT)) for p in ROOT.glob("docs/**/*.md"))])
def test_links_between_pages_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text)
    files = [link for link in links if not re.match(r"[a-z]+:", link)]
    assert [link for link in files if not ((ROOT / page).parent / link).exists()] == []
