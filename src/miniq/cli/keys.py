"""`miniq keys`: API keys and CURVE keys, created and revoked through a broker or, without one, on its store."""

from __future__ import annotations

import os
from collections.abc import Iterable

import click

from miniq.api.shapes import ApiKey
from miniq.cli.flags import Target, as_json, target
from miniq.cli.output import json_line, table
from miniq.cli.root import say
from miniq.client._sync.client import Client
from miniq.client.connection import connect
from miniq.errors import InvalidRequest

store = click.option("--store", metavar="URL", help="Store that no broker has open, such as rocksdb:DIR.")


@click.group()
def keys() -> None:
    """Create, list and revoke API keys, and CURVE keys for ZeroMQ.

    Once there is a key of either kind, every call needs one. A key allows VERB or VERB:PATTERN, where a verb is send,
    receive, read, manage, admin or *, and a pattern is a queue name with * for any characters.

    \b
    Examples:
      miniq keys create ops --allow '*' --store rocksdb:./miniq-data
      miniq keys create shop --allow 'send:orders.*' --allow 'read:orders.*'
      miniq keys list
      miniq keys revoke 1f2e3d4c5b6a
      miniq keys curve create worker --allow 'receive:orders.*'
    """


@keys.command()
@click.argument("name")
@click.option("--allow", multiple=True, required=True, metavar="SPEC", help="VERB:PATTERN; may be repeated.")
@store
@as_json
@target
def create(at: Target, name: str, allow: tuple[str, ...], store: str | None, as_json: bool) -> None:
    """Create a key and print its secret, which is not shown again.

    \b
    Example:
      miniq keys create shop --allow 'send:orders.*'
    """
    made = _create(at, store, name, allow)
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
    _show([key for key in _listed(at, store) if key.public is None], as_json)


@keys.command()
@click.argument("id")
@store
@target
def revoke(at: Target, id: str, store: str | None) -> None:
    """Revoke a key.

    \b
    Example:
      miniq keys revoke 1f2e3d4c5b6a
    """
    _revoke(at, store, id)


# CURVE keys


@keys.group()
def curve() -> None:
    """Create, list and revoke CURVE keys, with which clients connect over ZeroMQ.

    `miniq serve --curve` encrypts its ZeroMQ connections and accepts only these keys.

    \b
    Examples:
      miniq keys curve create worker --allow 'receive:orders.*' --store rocksdb:./miniq-data
      miniq serve --curve
      miniq receive orders.new --url tcp://127.0.0.1:5557 --curve-key worker.key
    """


@curve.command("create")
@click.argument("name")
@click.option("--allow", multiple=True, required=True, metavar="SPEC", help="VERB:PATTERN; may be repeated.")
@click.option("--out", metavar="FILE", help="File to write, for the client. [default: NAME.key]")
@click.option(
    "--public", metavar="KEY", help="Register this public key of a pair that the client created; writes no file."
)
@store
@as_json
@target
def create_curve(
    at: Target,
    name: str,
    allow: tuple[str, ...],
    out: str | None,
    public: str | None,
    store: str | None,
    as_json: bool,
) -> None:
    """Create a key pair, register its public key, and write the file that a client needs.

    \b
    Example:
      miniq keys curve create worker --allow 'receive:orders.*' --out worker.key
    """
    if public is not None:
        if out is not None:
            raise click.UsageError(
                "--out is for a key pair that is created here; with --public there is no file to write."
            )
        made = _create(at, store, name, allow, public)
    else:
        path = out or f"{name}.key"
        made = _create_pair(at, store, name, list(allow), path)
    if as_json:
        json_line(made)
        return
    click.echo(made.server if public is not None else path)
    what = "the broker's public key is printed above" if public is not None else "the file is secret"
    say(f"CURVE key {made.id} for {made.name!r} allows {', '.join(made.allow)}; {what}")


@curve.command("list")
@store
@as_json
@target
def list_curve(at: Target, store: str | None, as_json: bool) -> None:
    """List CURVE keys with their public keys.

    \b
    Example:
      miniq keys curve list
    """
    _show([key for key in _listed(at, store) if key.public is not None], as_json)


@curve.command("revoke")
@click.argument("id")
@store
@target
def revoke_curve(at: Target, id: str, store: str | None) -> None:
    """Revoke a CURVE key; open connections with it are refused too.

    \b
    Example:
      miniq keys curve revoke 1f2e3d4c5b6a
    """
    _revoke(at, store, id)


def _create_pair(at: Target, store: str | None, name: str, allow: list[str], path: str) -> ApiKey:
    """A new pair: the public key is registered with the broker, both are written to the file, which must be new."""
    import zmq

    public, secret = (half.decode() for half in zmq.curve_keypair())
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        made = _create(at, store, name, allow, public)
        text = f"# A CURVE key of MiniQ, {made.id}: whoever has this file can do what the key allows. Keep it secret.\n"
        text += f'public = "{public}"\nsecret = "{secret}"\nserver = "{made.server}"\n'
        os.write(file, text.encode())
    except BaseException:
        os.unlink(path)
        raise
    finally:
        os.close(file)
    return made


# The broker, or its store


def _open(at: Target, store: str | None) -> Client:
    """A client of the broker, or of a store that no broker has open: the first key must come from somewhere."""
    if (store or at.url).startswith("memory"):
        raise InvalidRequest("store: a key in memory: would be gone at once; name a folder", field="store")
    return at.open() if store is None else connect(store)


def _create(at: Target, store: str | None, name: str, allow: Iterable[str], public: str | None = None) -> ApiKey:
    with _open(at, store) as client:
        return client.create_key(name, allow, public)


def _listed(at: Target, store: str | None) -> list[ApiKey]:
    with _open(at, store) as client:
        return client.list_keys()


def _show(found: list[ApiKey], as_json: bool) -> None:
    if as_json:
        for key in found:
            json_line(key)
        return
    rows = []
    for key in found:
        made = key.created_at.strftime("%Y-%m-%d %H:%M")
        rows.append((key.id, key.name, made, ", ".join(key.allow), *([key.public] if key.public else [])))
    table(("ID", "NAME", "CREATED", "ALLOWS", *(["PUBLIC"] if any(key.public for key in found) else [])), rows)


def _revoke(at: Target, store: str | None, id: str) -> None:
    with _open(at, store) as client:
        client.revoke_key(id)
    click.echo(f"revoked {id}")
