"""`miniq completion`: the script that completes commands and flags in a shell."""

from __future__ import annotations

import click
from click.shell_completion import BashComplete, FishComplete, ZshComplete

from miniq.cli.root import root

SHELLS = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}


@click.command()
@click.argument("shell", type=click.Choice(list(SHELLS)))
def completion(shell: str) -> None:
    """Print the completion script for a shell.

    \b
    Examples:
      miniq completion bash > ~/.local/share/bash-completion/completions/miniq
      miniq completion zsh > ~/.zfunc/_miniq
      miniq completion fish > ~/.config/fish/completions/miniq.fish
    """
    completer = SHELLS[shell](root, {}, "miniq", "_MINIQ_COMPLETE")
    # `source()` would run the shell to check its version, which need not be installed here.
    click.echo(completer.source_template % completer.source_vars())
