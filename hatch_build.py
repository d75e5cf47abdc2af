"""What a wheel contains of the manual: the built site, else its sources, which the extra `docs` builds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCES = ("docs", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "Dockerfile", "compose.yaml", "bench/README.md")
FOLDERS = ("bench/results", "examples", "ops")


class Manual(BuildHookInterface[Any]):
    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        root = Path(self.root)
        if version != "editable" and not (root / "src/miniq/manual/site/index.html").is_file():
            for name in (*SOURCES, *FOLDERS):
                if (root / name).exists():
                    build_data["force_include"][str(root / name)] = f"miniq/manual/source/{name}"
