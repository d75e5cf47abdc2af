"""`miniq migrate`: everything from one store to another."""

from __future__ import annotations

import click

from miniq.cli.flags import as_json, without_broker
from miniq.cli.output import plural, progress_bar, result


@click.command()
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@as_json
def migrate(source: str, target: str, as_json: bool) -> None:
    """Copy everything from one store to a new one of any kind.

    All queues with settings, messages in their state (leases, delays, receives, groups, dead letters), dedup records,
    API keys and history, verified by reading both again. FROM stays as it is; stop its brokers first. TO must be
    empty. If it is interrupted, TO is incomplete: brokers refuse it, and it must be removed before another attempt.

    \b
    Examples:
      miniq migrate rocksdb:./miniq-data mongodb://127.0.0.1:27017/miniq
      miniq migrate leveldb:./old rocksdb:./new
    """
    from miniq.cli import offline

    with without_broker(), progress_bar() as progress:
        copied = offline.migrate(source, target, progress)
    result(
        as_json,
        copied,
        f"copied {plural(copied['messages'], 'message')} in {plural(copied['queues'], 'queue')}, "
        f"{plural(copied['events'], 'event')} of history and {plural(copied['records'], 'record')}; verified",
    )
