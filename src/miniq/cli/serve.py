"""`miniq serve`: a broker in the foreground."""

from __future__ import annotations

import signal
import ssl
import sys
from types import FrameType
from typing import Any

import click

from miniq import config
from miniq.cli.root import say
from miniq.errors import InvalidRequest
from miniq.logs import log_to_stderr
from miniq.options import Options

PORT = click.IntRange(0, 65535)
LEVELS = ("debug", "info", "warning", "error")


@click.command()
@click.option(
    "--store",
    metavar="URL",
    help="rocksdb:DIR, leveldb:DIR, postgresql://USER@HOST/DATABASE, mongodb://HOST/NAME or memory:. "
    "[default: rocksdb:./miniq-data]",
)
@click.option("--host", help="Address to listen on; others than loopback need an API key. [default: 127.0.0.1]")
@click.option("--port", type=PORT, help="Port of HTTP, 0 for any free one, also of ZeroMQ. [default: 5000]")
@click.option("--command-port", type=PORT, help="Port of the ZeroMQ command server. [default: 5557]")
@click.option("--producer-port", type=PORT, help="Port of the ZeroMQ producer endpoint. [default: 5555]")
@click.option("--consumer-port", type=PORT, help="Port of the ZeroMQ consumer endpoint. [default: 5556]")
@click.option("--no-zmq", "zmq", flag_value=False, type=bool, default=None, help="Do not speak ZeroMQ.")
@click.option(
    "--curve", is_flag=True, default=None, help="ZeroMQ only for keys of `miniq keys curve create`, and encrypted."
)
@click.option(
    "--config",
    "file",
    metavar="FILE",
    envvar="MINIQ_CONFIG",
    help="TOML file with options; ops/miniq.toml has all of them. [env: MINIQ_CONFIG]",
)
@click.option(
    "--durability",
    type=click.Choice(["fsync", "relaxed"]),
    help="When a send or ack is confirmed: once it is on disk, or once the operating system has it. [default: fsync]",
)
@click.option("--tls-cert", metavar="FILE", help="Certificate (PEM): speak HTTPS.")
@click.option("--tls-key", metavar="FILE", help="Its key (PEM).")
@click.option(
    "--log-level",
    type=click.Choice(LEVELS),
    default="info",
    show_default=True,
    envvar="MINIQ_LOG_LEVEL",
    help="How much is logged on stderr.",
)
@click.option("--allowed-hosts", metavar="NAMES", help="Names under which browsers may reach it. [default: none]")
@click.option("--tracing", is_flag=True, default=None, help="Export spans over OTLP; see OTEL_EXPORTER_OTLP_ENDPOINT.")
@click.option("--log-format", type=click.Choice(["text", "json"]), help="How log lines look. [default: text]")
def serve(file: str | None, log_level: str, **flags: Any) -> int:
    """Run a broker until Ctrl-C or SIGTERM.

    It prints one line with its addresses when it is ready. Options come from flags, then from the
    environment (MINIQ_STORE, MINIQ_PORT, MINIQ_LIMITS__BODY_BYTES, ...), then from the file.

    \b
    Examples:
      miniq serve
      miniq serve --store rocksdb:/var/lib/miniq/data --config /etc/miniq/miniq.toml
      miniq keys create admin --allow '*' --store rocksdb:/var/lib/miniq/data
      miniq serve --store rocksdb:/var/lib/miniq/data --host 0.0.0.0 --tls-cert cert.pem --tls-key key.pem --curve
    """
    options = config.load(flags, file=file)
    log_to_stderr(log_level, options.log_format)
    if options.durability == "relaxed":
        say("durability is relaxed: what is confirmed may be lost with the machine's power")
    ready = False

    def announce(line: str) -> None:
        nonlocal ready
        ready = True
        click.echo(line)
        sys.stdout.flush()

    def on_signal(number: int, frame: FrameType | None) -> None:
        # While it serves, the server has handlers of its own. When it has stopped accepting these are back, and
        # nothing may cut off what it still has to write.
        if not ready:
            raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, on_signal)
    check_tls(options)
    from miniq.server.server import run

    try:
        return run(options, announce)
    except KeyboardInterrupt:
        return 0


def check_tls(options: Options) -> None:
    """Refuse a certificate and key that do not fit before anything is opened."""
    if options.tls_cert is None:
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(options.tls_cert, options.tls_key)
    except (ssl.SSLError, OSError) as error:
        both = f"{options.tls_cert} and {options.tls_key or options.tls_cert}"
        raise InvalidRequest(f"tls_cert: {both} are not a certificate and its key: {error}", field="tls_cert") from None
