"""`miniq completion`: the script with which a shell completes commands and flags."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from miniq.cli.root import root


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script for a shell.

    \b
    Examples:
      miniq completion bash > ~/.local/share/bash-completion/completions/miniq
      miniq completion zsh > ~/.zfunc/_miniq
      miniq completion fish > ~/.config/fish/completions/miniq.fish
    """
    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"there is no completion for {shell}")
    made = kind(root, {}, "miniq", "_MINIQ_COMPLETE")
    # Not `source()`: that looks for the shell itself, which need not be on the machine that makes the script.
    click.echo(made.source_template % made.source_vars())
