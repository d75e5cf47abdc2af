"""Node.js and the packages that `make node` installs."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

PACKAGES = Path(__file__).parents[1] / ".venv" / "node" / "node_modules"


def node(package: str) -> tuple[str, Path]:
    """Node.js and the folder of a package. If one is absent, skips, or fails where nothing may be absent."""
    found, folder = shutil.which("node"), PACKAGES / package
    if found is None or not folder.is_dir():
        what = f"node or {package} is absent: `make node` installs them"
        if os.environ.get("CI") == "true":
            pytest.fail(what)
        pytest.skip(what)
    return found, folder
