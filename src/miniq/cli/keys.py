"""`miniq keys`: API keys, made and revoked over HTTP or, without a broker, on its store."""

from __future__ import annotations

import ssl
import urllib.error
import urllib.request
from typing import Any, TypeVar
from urllib.parse import quote

import click
import msgspec

from miniq.cli import offline
from miniq.cli.flags import Target, as_json, target
from miniq.cli.output import json_line, table
from miniq.cli.root import say
from miniq.errors import MiniQError, StoreUnavailable
from miniq.wire import codec, shapes

T = TypeVar("T")
TIMEOUT = 30.0

store = click.option("--store", metavar="URL", help="Store that no broker has open, such as rocksdb:DIR.")


@click.group()
def keys() -> None:
    """Make, list and revoke API keys.

    Once there is a key, every call needs one. A key allows VERB or VERB:PATTERN, where a verb is send,
    receive, read, manage, admin or *, and a pattern is a queue name with * for any characters.

    \b
    Examples:
      miniq keys create ops --allow '*' --store rocksdb:./miniq-data
      miniq keys create shop --allow 'send:orders.*' --allow 'read:orders.*'
      miniq keys list
      miniq keys revoke 1f2e3d4c5b6a
    """


@keys.command()
@click.argument("name")
@click.option("--allow", multiple=True, required=True, metavar="SPEC", help="VERB:PATTERN; may be repeated.")
@store
@as_json
@target
def create(at: Target, name: str, allow: tuple[str, ...], store: str | None, as_json: bool) -> None:
    """Make a key and print its secret, which is shown only now.

    \b
    Example:
      miniq keys create shop --allow 'send:orders.*'
    """
    if store is not None or not at.is_remote:
        made = offline.create_key(store or at.url, name, list(allow))
    else:
        made = _ask(at, "POST", "/v1/keys", shapes.KeyReply, shapes.KeyBody(name, list(allow)))
    if as_json:
        json_line(made)
        return
    click.echo(made.secret)
    say(f"key {made.id} for {made.name!r} allows {', '.join(made.allow)}; its secret is not shown again")


@keys.command("list")
@store
@as_json
@target
def list_(at: Target, store: str | None, as_json: bool) -> None:
    """List keys, without their secrets.

    \b
    Example:
      miniq keys list
    """
    if store is not None or not at.is_remote:
        found = offline.list_keys(store or at.url)
    else:
        found = _ask(at, "GET", "/v1/keys", shapes.KeysReply).keys
    if as_json:
        for key in found:
            json_line(key)
        return
    table(
        ("ID", "NAME", "CREATED", "ALLOWS"),
        [(key.id, key.name, key.created_at.strftime("%Y-%m-%d %H:%M"), ", ".join(key.allow)) for key in found],
    )


@keys.command()
@click.argument("id")
@store
@target
def revoke(at: Target, id: str, store: str | None) -> None:
    """Make a key useless from now on.

    \b
    Example:
      miniq keys revoke 1f2e3d4c5b6a
    """
    if store is not None or not at.is_remote:
        offline.revoke_key(store or at.url, id)
    else:
        _ask(at, "DELETE", f"/v1/keys/{quote(id, safe='')}", type(None))
    click.echo(f"revoked {id}")


def _ask(at: Target, method: str, path: str, reply: type[T], body: Any = None) -> T:
    """One call of the HTTP API that the client has no method for, because programs do not make keys."""
    request = urllib.request.Request(  # noqa: S310  the scheme was checked
        at.url.rstrip("/") + path,
        None if body is None else codec.encode_json(body),
        {"content-type": "application/json", "accept": "application/json"},
        method=method,
    )
    if at.api_key is not None:
        request.add_header("authorization", f"Bearer {at.api_key}")
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
    if at.url.startswith("https:"):
        handlers.append(urllib.request.HTTPSHandler(context=ssl.create_default_context()))
    try:
        with urllib.request.build_opener(*handlers).open(request, timeout=TIMEOUT) as answer:
            raw = answer.read()
    except urllib.error.HTTPError as error:
        with error:
            raise _problem(error.code, error.read()) from None
    except (urllib.error.URLError, OSError) as error:
        reason = getattr(error, "reason", None) or error
        raise StoreUnavailable(f"cannot reach the broker at {at.url}: {reason}") from None
    return msgspec.json.decode(raw or b"null", type=reply)


def _problem(status: int, raw: bytes) -> MiniQError:
    try:
        return codec.raised(msgspec.json.decode(raw, type=shapes.Problem))
    except msgspec.DecodeError:
        return MiniQError(f"the broker answered {status}; is it a MiniQ broker?")
