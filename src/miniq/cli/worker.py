"""`miniq worker`: runs the tasks and handlers of an app."""

from __future__ import annotations

import click

from miniq.cli.flags import SECONDS, Whole, without_broker
from miniq.errors import MiniQError, Unauthorized
from miniq.logs import log_to_stderr

KEY = "the key is the app's, miniq.App(…, api_key=KEY), or MINIQ_API_KEY if the app names none"
LEVELS = click.Choice(["debug", "info", "warning", "error"])


def _refuse_url(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    """Say where the address of the broker is given instead."""
    if value is not None:
        text = "There is no --url: the address is the app's, miniq.App(URL), or MINIQ_URL if the app names none."
        raise click.UsageError(text, ctx)


def _refuse_key(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    """Say where the key is given instead."""
    if value is not None:
        raise click.UsageError(f"There is no --api-key: {KEY}.", ctx)


@click.command()
@click.argument("app", metavar="MODULE:APP")
@click.option("--concurrency", type=Whole(1), default=8, show_default=True, help="Jobs at a time per process.")
@click.option("--processes", type=Whole(1), help="Processes to start and to replace. [default: this one alone]")
@click.option("--queues", metavar="NAME,…", help="Queues to work on. [default: all that the app has handlers for]")
@click.option("--grace", type=SECONDS, default=30.0, help="Time to finish what runs at the end. [default: 30]")
@click.option("--reload", is_flag=True, help="Start again when a Python file below this folder changes; to develop.")
@click.option("--metrics-port", type=Whole(0, 65535), help="Serve Prometheus metrics on this port.")
@click.option("--metrics-host", default="127.0.0.1", show_default=True, help="Address for --metrics-port.")
@click.option("--log-level", type=LEVELS, default="info", show_default=True)
@click.option("--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option("--url", hidden=True, is_eager=True, expose_value=False, callback=_refuse_url)
@click.option("--api-key", hidden=True, is_eager=True, expose_value=False, callback=_refuse_key)
def worker(
    app: str,
    concurrency: int,
    processes: int | None,
    queues: str | None,
    grace: float,
    reload: bool,
    metrics_port: int | None,
    metrics_host: str,
    log_level: str,
    log_format: str,
) -> int:
    """Run the tasks and handlers of a miniq.App.

    The address of the broker is the app's, miniq.App(URL), or MINIQ_URL if the app names none.

    Leases are extended while work runs. On Ctrl-C or SIGTERM it receives no more, finishes what runs within --grace,
    gives the rest back and exits with 0; a second signal ends it at once with 1. Work that exceeds its timeout fails: a
    coroutine is cancelled, the outcome of a thread is ignored, and with --processes its process is replaced.

    \b
    Examples:
      miniq worker shop.tasks:app
      miniq worker shop.tasks:app --concurrency 8 --processes 2 --queues emails,orders
      miniq worker shop.tasks:app --reload
    """
    from miniq.worker.process import Process, Settings, check, load, run
    from miniq.worker.supervisor import Supervisor

    names = None if queues is None else [name.strip() for name in queues.split(",") if name.strip()]
    settings = Settings(
        app=app,
        queues=names or None,
        concurrency=concurrency,
        processes=processes,
        grace=grace,
        reload=reload,
        metrics_port=metrics_port,
        metrics_host=metrics_host,
        log_level=log_level,
        log_format=log_format,
    )
    log_to_stderr(log_level, "json" if log_format == "json" else "text")
    if processes is not None or reload:
        if not reload:
            check(load(app), settings)
        return Supervisor(settings).run()
    with without_broker("give the app the address of its broker, with miniq.App(...) or MINIQ_URL"):
        try:
            return run(Process(load(app), settings))
        except Unauthorized as error:  # for which other commands have --api-key
            if error.field is not None:
                raise
            raise MiniQError(f"{error.text} ({KEY})") from None
