"""Generates `src/miniq/client/_sync` from `src/miniq/client/_async`: the async client without `await`.

Words are replaced, also in docstrings, lines that end in `# async only` are omitted, and those that begin with
`# sync only: ` are uncommented; `ruff` then sorts imports and formats. With --check, nothing is written, and files that
differ are listed.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

CLIENT = Path(__file__).parents[1] / "src" / "miniq" / "client"
NOTE = "# Generated from ../_async/{name} by `make generate`: change that file.\n"
ONLY = re.compile(r".*# async only\n", re.MULTILINE)
WORDS = [
    (re.compile(pattern), word)
    for pattern, word in (
        (r"# sync only: ", ""),
        (r"\bself\._background\.start\((.+)\)", r"\1"),
        (r"\basync (def|with|for)\b", r"\1"),
        (r"\bawait ", ""),
        (r"Async(?=[A-Z])", ""),
        (r"\basync_(?=[a-z])", ""),
        (r"\b__a(enter|exit|iter|next)__\b", r"__\1__"),
        (r"\bconnect_async\b", "connect"),
        (r"\b_async\b", "_sync"),
        (r"\basyncio\b", "threading"),
        (r"The async client\. `_sync` is", "The blocking client,"),
    )
]


def main() -> int:
    check = "--check" in sys.argv[1:]
    outdated = []
    sources = sorted((CLIENT / "_async").glob("*.py"))
    for source in sources:
        target = CLIENT / "_sync" / source.name
        text = generated(source)
        if not target.exists() or target.read_text(encoding="utf-8") != text:
            outdated.append(target)
            if not check:
                target.write_text(text, encoding="utf-8")
    for target in sorted({*(CLIENT / "_sync").glob("*.py")} - {CLIENT / "_sync" / source.name for source in sources}):
        outdated.append(target)
        if not check:
            target.unlink()
    if check:
        for target in outdated:
            print(f"{target.relative_to(Path.cwd())} is out of date; run `make generate`")
    return 1 if check and outdated else 0


def generated(source: Path) -> str:
    """The blocking version of a module."""
    text = ONLY.sub("", source.read_text(encoding="utf-8"))
    for pattern, word in WORDS:
        text = pattern.sub(word, text)
    text = NOTE.format(name=source.name) + text
    for command in (["check", "--select", "F401,I,UP034", "--fix", "--quiet"], ["format"]):
        run = [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(CLIENT / "_sync" / source.name), "-"]
        text = subprocess.run(run, input=text, capture_output=True, text=True, check=True).stdout
    return text


if __name__ == "__main__":
    sys.exit(main())
