"""How the command line explains itself: help with examples, wrong usage, completion."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from miniq import __version__
from miniq.cli.root import COMMANDS, root
from tests.acceptance.shell import environment


def commands() -> list[list[str]]:
    """Every command and subcommand that help shows."""
    found: list[list[str]] = []
    for name in COMMANDS:
        found.append([name])
        command = root.get_command(click.Context(root), name)
        if isinstance(command, click.Group):
            found += [[name, inner] for inner in command.commands]
    return found


@pytest.mark.parametrize("command", commands(), ids=" ".join)
def test_every_command_has_help_with_an_example(command: list[str]) -> None:
    result = CliRunner().invoke(root, [*command, "--help"], prog_name="miniq")
    assert result.exit_code == 0
    assert "Example" in result.output
    assert f"miniq {command[0]}" in result.output.split("Example")[1]


@pytest.mark.parametrize("group", [[], ["queues"], ["topics"], ["schedules"], ["keys"], ["pipeline"]], ids=" ".join)
def test_summaries_of_commands_are_not_cut(group: list[str]) -> None:
    result = CliRunner().invoke(root, [*group, "--help"], prog_name="miniq", terminal_width=80)
    assert "..." not in result.output.split("Commands:")[1]


def test_a_number_that_is_none_is_told_in_words() -> None:
    result = CliRunner().invoke(root, ["queues", "set", "q", "--retry-factor", "abc"], prog_name="miniq")
    assert "'abc' is not a number, such as 2 or 0.5" in result.output


def test_help_lists_every_command_and_no_hidden_one() -> None:
    result = CliRunner().invoke(root, ["--help"], prog_name="miniq")
    listed = [line.split()[0] for line in result.output.split("Commands:")[1].splitlines() if line.startswith("  ")]
    assert set(COMMANDS) <= set(listed)
    assert "copy-write" not in result.output


@pytest.mark.parametrize(
    "args",
    [
        ["nonsense"],
        ["send"],
        ["send", "q", "1", "--priority", "10"],
        ["send", "q", "1", "--delay", "soon"],
        ["send", "q", "1", "--header", "novalue"],
        ["send", "q", "1", "--file", __file__],
        ["send", "q", "1", "2", "--dedup-id", "x"],
        ["send", "q", "--file", "/nowhere"],
        ["receive", "q", "--max", "0"],
        ["receive", "q", "--wait", "-1"],
        ["ack", "q", "id"],
        ["peek", "q", "--status", "lost"],
        ["queues", "set", "q"],
        ["queues", "create", "q", "--max-receives", "many"],
        ["queues", "create", "q", "--max-bytes", "much"],
        ["queues", "nonsense"],
        ["redrive", "q", "--rate", "0"],
        ["top", "q", "--sort", "ready"],
        ["top", "q", "--filter", "x"],
        ["keys", "create", "x"],
        ["copy", "only-one"],
        ["produce", "q", "--workers", "0"],
        ["consume", "q", "--fail-rate", "2"],
        ["import", __file__, "q", "--format", "xml"],
        ["restore", "/nowhere", "x"],
        ["completion", "cmd"],
        ["serve", "--log-level", "loud"],
    ],
    ids=" ".join,
)
def test_wrong_usage_ends_with_2(args: list[str]) -> None:
    result = CliRunner().invoke(root, args, prog_name="miniq")
    assert result.exit_code == 2
    assert "Usage: miniq" in result.output


def run(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "miniq", *args], capture_output=True, text=True, env=environment(), timeout=30
    )


def test_a_misspelt_command_is_answered_with_what_was_meant() -> None:
    ended = run("recieve", "q")
    assert ended.returncode == 2
    assert "Did you mean 'receive'?" in ended.stderr


@pytest.mark.parametrize("group", ["queues", "topics"])
def test_a_verb_of_another_program_is_answered_with_ours(group: str) -> None:
    result = CliRunner().invoke(root, [group, "rm", "x"], prog_name="miniq")
    assert result.exit_code == 2
    assert "No such command 'rm'. Did you mean 'delete'?" in result.output


def test_schedules_have_the_verb_of_the_other_groups_and_keep_the_earlier_one() -> None:
    result = CliRunner().invoke(root, ["schedules", "--help"], prog_name="miniq")
    assert re.findall(r"^  (delete|rm)\b", result.output, re.MULTILINE) == ["delete"]


def test_a_worker_says_where_it_gets_the_address_of_its_broker() -> None:
    ended = run("worker", "shop:app", "--url", "http://127.0.0.1:1")
    assert ended.returncode == 2
    assert "miniq.App(URL), or MINIQ_URL" in ended.stderr
    assert "--reload" not in ended.stderr


def test_a_worker_says_where_it_gets_its_key() -> None:
    ended = run("worker", "shop:app", "--api-key", "x")
    assert ended.returncode == 2
    assert "There is no --api-key: the key is the app's" in ended.stderr
    assert "MINIQ_API_KEY" in ended.stderr


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["receive", "q", "--max", "x"], "'x' is not a whole number"),
        (["queues", "set", "q", "--rate", "5/s"], "'5/s' is not a number of messages per second, such as 50"),
        (["queues", "set", "q", "--rate", "-1"], "'-1' is not a number of messages per second, such as 50"),
        (["redrive", "q", "--rate", "5/s"], "'5/s' is not a number of messages per second, such as 50"),
    ],
)
def test_a_wrong_number_is_answered_with_what_is_expected(args: list[str], says: str) -> None:
    result = CliRunner().invoke(root, args, prog_name="miniq")
    assert (result.exit_code, says in result.output) == (2, True)


def test_help_of_keys_names_all_verbs() -> None:
    ended = run("keys", "--help")
    words = ended.stdout.replace(",", " ").split()
    assert {"send", "receive", "publish", "read", "manage", "admin"} <= set(words)


def test_it_tells_its_version() -> None:
    ended = run("--version")
    assert (ended.returncode, ended.stdout) == (0, f"miniq, version {__version__}\n")


def test_without_arguments_it_shows_help() -> None:
    ended = run()
    assert ended.returncode == 2
    assert "miniq serve" in ended.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script(shell: str) -> None:
    ended = run("completion", shell)
    assert ended.returncode == 0
    assert f"_MINIQ_COMPLETE={shell}_complete" in ended.stdout
    if shutil.which(shell) is not None:
        checked = subprocess.run([shell, "-n"], input=ended.stdout, capture_output=True, text=True)
        assert (checked.returncode, checked.stderr) == (0, "")


def test_completion_knows_commands_and_flags() -> None:
    def completed(words: str, place: str) -> str:
        env = environment(_MINIQ_COMPLETE="bash_complete", COMP_WORDS=words, COMP_CWORD=place)
        return subprocess.run([sys.executable, "-m", "miniq"], capture_output=True, text=True, env=env).stdout

    commands = ["receive", "release", "result", "redrive", "restore"]
    assert completed("miniq re", "1").split() == [f"plain,{command}" for command in commands]
    assert "plain,--visibility-timeout" in completed("miniq receive q --vis", "3")
    assert "plain,fish" in completed("miniq completion f", "2")
