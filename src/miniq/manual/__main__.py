"""`python -m miniq.manual [FOLDER]`: build the manual. `--strict` fails on any link that leads nowhere."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from miniq.errors import install
from miniq.manual_files import SITE


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m miniq.manual", description="Build the manual as a web site.")
    parser.add_argument("folder", nargs="?", type=Path, default=SITE, help="where to; what was there is replaced")
    parser.add_argument("--strict", action="store_true", help="fail on warnings, such as a link that leads nowhere")
    parser.add_argument("--background", action="store_true", help="leave the processors to other programs")
    asked = parser.parse_args()
    if asked.background:
        os.nice(19)
    try:
        from miniq.manual.build import build
    except ModuleNotFoundError as error:
        print(f"{error.name} is not installed, which builds the manual: {install('docs')}", file=sys.stderr)
        return 1
    return build(asked.folder, strict=asked.strict)


if __name__ == "__main__":
    sys.exit(main())
