"""`miniq serve`: a broker in the foreground."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click
from msgspec import structs

from miniq import config
from miniq.cli.flags import DEFAULT_URL, Whole
from miniq.cli.processes import end_with_parent
from miniq.cli.root import discard_output, say
from miniq.client.url import store_of
from miniq.errors import InvalidRequest, MiniQError, StoreLocked
from miniq.logs import log_to_stderr
from miniq.manual_files import built
from miniq.options import Options
from miniq.store_urls import FORMS

if TYPE_CHECKING:
    from miniq.server.server import Ready

PORT = Whole(0, 65535)
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s/:?#@\[\]\\]+)(:\d{1,5})?")
"""A host as browsers write it in `Host` and `Origin`."""
LEVELS = ("debug", "info", "warning", "error")


@click.command()
@click.option(
    "--store",
    metavar="URL",
    help=f"A folder, {FORMS}. [default: rocksdb:./miniq-data]",
)
@click.option("--host", help="Address to listen on; any but loopback needs an API key. [default: 127.0.0.1]")
@click.option("--port", type=PORT, help="HTTP port; 0 for any free one, for ZeroMQ too. [default: 5000]")
@click.option("--command-port", type=PORT, help="ZeroMQ port of the command server. [default: 5557]")
@click.option("--producer-port", type=PORT, help="ZeroMQ port of the producer endpoint. [default: 5555]")
@click.option("--consumer-port", type=PORT, help="ZeroMQ port of the consumer endpoint. [default: 5556]")
@click.option("--no-zmq", "zmq", flag_value=False, type=bool, default=None, help="Serve HTTP only.")
@click.option(
    "--curve", is_flag=True, default=None, help="Encrypt ZeroMQ, and accept only keys of `miniq keys curve create`."
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
@click.option("--tls-cert", metavar="FILE", help="Certificate (PEM); serve HTTPS.")
@click.option("--tls-key", metavar="FILE", help="Private key of the certificate (PEM).")
@click.option("--tls-client-ca", metavar="FILE", help="Authorities (PEM) of the certificates that clients must have.")
@click.option(
    "--log-level",
    type=click.Choice(LEVELS),
    default="info",
    show_default=True,
    envvar="MINIQ_LOG_LEVEL",
    help="Least severe level to log on stderr. [env: MINIQ_LOG_LEVEL]",
)
@click.option("--allowed-hosts", metavar="NAMES", help="Host names that browsers may use to reach it. [default: none]")
@click.option("--tracing", is_flag=True, default=None, help="Export spans over OTLP; see OTEL_EXPORTER_OTLP_ENDPOINT.")
@click.option("--log-format", type=click.Choice(["text", "json"]), help="Format of log lines. [default: text]")
def serve(file: str | None, log_level: str, **flags: Any) -> int:
    """Run a broker until Ctrl-C or SIGTERM.

    When it is ready it prints one line for programs, then its addresses for people. Options come from flags, then
    from the environment (MINIQ_STORE, MINIQ_PORT, MINIQ_LIMITS__BODY_BYTES, ...), then from the file.

    \b
    Examples:
      miniq serve
      miniq serve --store rocksdb:/var/lib/miniq/data --config /etc/miniq/miniq.toml
      miniq keys create admin --allow '*' --store rocksdb:/var/lib/miniq/data
      miniq serve --store rocksdb:/var/lib/miniq/data --host 0.0.0.0 --tls-cert cert.pem --tls-key key.pem --curve
    """

    def announce(started: Ready) -> None:
        try:
            click.echo("\n".join([started.line, *addresses(started)]))
            sys.stdout.flush()
        except OSError:
            discard_output()  # a closed stdout does not stop a broker

    try:
        end_with_parent()
        options = config.load(flags, file=file)
        options = structs.replace(options, store=store_of(options.store, "store"))
        check_serving(options)
        log_to_stderr(log_level, options.log_format)
        if options.durability == "relaxed":
            say("durability is relaxed: confirmed messages may be lost if the machine loses power")
        return run_server(options, announce)
    except KeyboardInterrupt:
        return 0


def check_serving(options: Options) -> None:
    """Refuse options that would have no effect."""
    if options.curve and not options.zmq:
        text = "curve: there is no ZeroMQ to encrypt with --no-zmq (zmq = false); leave one of them out"
        raise InvalidRequest(text, field="curve")
    for name in filter(None, map(str.strip, options.allowed_hosts.split(","))):
        if _HOST.fullmatch(name) is None:
            text = f"allowed_hosts: {name!r} is not a host name; use NAME or NAME:PORT, such as mq.example.com"
            raise InvalidRequest(text, field="allowed_hosts")


def run_server(options: Options, announce: Callable[[Ready], None]) -> int:
    """Serve until it is stopped. An error now, such as a port that is taken, is not wrong usage, unless it is a
    certificate that cannot be used."""
    from miniq.server.server import run

    try:
        return run(options, announce)
    except StoreLocked as error:
        raise MiniQError(f"{error.text} with --store") from None
    except InvalidRequest as error:
        if error.field in ("tls_cert", "tls_client_ca"):
            raise
        raise MiniQError(error.text) from None


def addresses(started: Ready) -> list[str]:
    """The lines for people: addresses, and a command to try."""
    # 0.0.0.0 and :: mean all addresses of this machine; clients cannot connect to them.
    http = started.http.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")
    url = "" if http == DEFAULT_URL else f" --url {http}"
    lines = [("HTTP", http), ("console", f"{http}/console"), ("docs", f"{http}/docs")]
    if built() is not None:
        lines.append(("manual", f"{http}/manual"))
    if started.zmq is not None:
        lines.append(("ZeroMQ", started.zmq))
    lines.append(("command", f"{this_command()} send emails hello{url}"))
    return [f"  {name:<9}{text}" for name, text in lines]


def this_command() -> str:
    """How to run this command from the current folder."""
    path = os.path.abspath(sys.argv[0])
    if os.path.basename(path) == "__main__.py":
        return f"{shlex.quote(sys.executable)} -m miniq"
    installed = shutil.which("miniq")
    if installed is not None and os.path.realpath(installed) == os.path.realpath(path):
        return "miniq"
    here = os.path.relpath(path)
    return shlex.quote(path if here.startswith(os.pardir) else here)
