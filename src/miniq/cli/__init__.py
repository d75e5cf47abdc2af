"""The command `miniq`: everything that people do with a broker from a shell, over the public client."""

from miniq.cli.root import main

__all__ = ["main"]
