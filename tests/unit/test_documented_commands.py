"""Every command, subcommand and option that the documentation names exists."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from miniq.cli.root import root

ROOT = Path(__file__).parents[2]
PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    "examples/README.md",
    "bench/README.md",
    *sorted(str(page.relative_to(ROOT)) for page in ROOT.glob("docs/**/*.md")),
]
CODE = re.compile(r"^```\w*\n(.*?)^```|``([^`]+)``|`([^`]+)`", re.MULTILINE | re.DOTALL)
QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
CALL = re.compile(r"(?:^|(?<=[\s($'/]))miniq ((?:[^|;&<>#\n\\`)]|\\\n)*)", re.MULTILINE)
WORD = re.compile(r"[a-z][a-z-]*")
OPTION = re.compile(r"(?<!\S)\[?(--[a-z][a-z-]*|-[a-zA-Z])(?=[\s=\],…]|$)")
EVERYWHERE = {"--help", "-h", "--version"}


def calls(text: str) -> Iterator[str]:
    """What follows the name `miniq` in code."""
    for groups in CODE.findall(text):
        for call in CALL.findall("".join(groups)):
            yield QUOTED.sub("TEXT", re.sub(r"\\\n\s*", " ", call)).partition("$(")[0].strip()


def unknown(call: str) -> str | None:
    """The word of a call that is no command or option of `miniq`."""
    command: click.Command = root
    words = call.split()
    while isinstance(command, click.Group) and words and WORD.fullmatch(words[0]):
        found = command.get_command(click.Context(command), words[0])
        if found is None:
            return words[0]
        command = found
        words = words[1:]
    options = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    return next((name for name in OPTION.findall(call) if name not in options | EVERYWHERE), None)


@pytest.mark.parametrize("page", PAGES)
def test_a_page_names_only_commands_and_options_that_exist(page: str) -> None:
    found = [(call, word) for call in calls((ROOT / page).read_text(encoding="utf-8")) if (word := unknown(call))]
    assert found == []


def test_calls_are_found_in_code_and_checked() -> None:
    text = "`miniq edit`, miniq is\n```bash\nA=1 miniq queues sett x \\\n  --rate 1 | miniq peek q --jsn\n```\n"
    assert [unknown(call) for call in calls(text)] == ["edit", "sett", "--jsn"]
