"""`miniq keys`: API keys and CURVE keys, created and revoked through a broker or, without one, on its store."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable
from typing import Any

import click

from miniq.api.shapes import ApiKey
from miniq.cli.flags import Target, as_json, store, target
from miniq.cli.output import json_line, table
from miniq.cli.queues import confirm
from miniq.cli.root import say
from miniq.client._sync.client import Client
from miniq.client.connection import connect
from miniq.errors import InvalidRequest

allow = click.option("--allow", multiple=True, required=True, metavar="SPEC", help="VERB:PATTERN; may be repeated.")
yes = click.option("--yes", is_flag=True, help="Do not ask, even if the key locks everyone out of managing keys.")

max_queues = click.option(
    "--max-queues", type=click.IntRange(0), metavar="N", help="Create no queue while N match its patterns."
)


def with_client(command: Callable[..., None]) -> Callable[..., None]:
    """Pass a command a client of the broker, or of the store that `--store` names: the first key is created without a
    broker."""

    @functools.wraps(command)
    def called(at: Target, store: str | None, **flags: Any) -> None:
        if (store or at.url).startswith("memory"):
            raise InvalidRequest("store: a key in memory: would be gone at once; name a folder", field="store")
        with at.open() if store is None else connect(store) as client:
            command(client, **flags)

    return target(called)


@click.group()
def keys() -> None:
    """Create, list and revoke API keys, and CURVE keys for ZeroMQ.

    Once there was a key of either kind, every call needs one. If all were revoked, create one with --store, while no
    broker has the folder open. A key allows VERB or VERB:PATTERN, where a verb is send, receive, read, manage, admin
    or *, and a pattern is a queue name with * for any characters.

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
@allow
@max_queues
@yes
@store
@as_json
@with_client
def create(client: Client, name: str, allow: tuple[str, ...], max_queues: int | None, yes: bool, as_json: bool) -> None:
    """Create a key and print its secret, which is not shown again.

    \b
    Example:
      miniq keys create shop --allow 'send:orders.*'
    """
    confirm_lockout(client, allow, yes)
    key = client.create_key(name, allow, max_queues=max_queues)
    warn(key)
    if as_json:
        json_line(key)
        return
    click.echo(key.secret)
    say(f"key {key.id} for {key.name!r} allows {', '.join(key.allow)}; its secret is not shown again")


@keys.command("list")
@store
@as_json
@with_client
def list_(client: Client, as_json: bool) -> None:
    """List keys, without their secrets.

    \b
    Example:
      miniq keys list
    """
    show_keys([key for key in client.list_keys() if key.public is None], as_json)


@keys.command()
@click.argument("id")
@store
@with_client
def revoke(client: Client, id: str) -> None:
    """Revoke a key.

    \b
    Example:
      miniq keys revoke 1f2e3d4c5b6a
    """
    revoke_key(client, id)


# CURVE keys


@keys.group()
def curve() -> None:
    """Create, list and revoke CURVE keys for clients that connect over ZeroMQ.

    `miniq serve --curve` encrypts its ZeroMQ connections and accepts only these keys.

    \b
    Examples:
      miniq keys create admin --allow '*' --store rocksdb:./miniq-data
      miniq keys curve create worker --allow 'receive:orders.*' --store rocksdb:./miniq-data
      miniq serve --curve
      miniq receive orders.new --url tcp://127.0.0.1:5557 --curve-key worker.key
    """


@curve.command("create")
@click.argument("name")
@allow
@click.option("--out", metavar="FILE", help="File to write, for the client. [default: NAME.key]")
@click.option(
    "--public", metavar="KEY", help="Register this public key of a pair that the client created; writes no file."
)
@yes
@store
@as_json
@with_client
def create_curve(
    client: Client, name: str, allow: tuple[str, ...], out: str | None, public: str | None, yes: bool, as_json: bool
) -> None:
    """Create a key pair, register its public key, and write the file that a client needs.

    \b
    Example:
      miniq keys curve create worker --allow 'receive:orders.*' --out worker.key
    """
    confirm_lockout(client, allow, yes)
    if public is None:
        path = out or f"{name}.key"
        key = create_pair(client, name, allow, path)
        note = "the file is secret"
    elif out is None:
        key = client.create_key(name, allow, public)
        note = "the broker's public key is printed above"
    else:
        raise click.UsageError("--out is for a key pair that is created here; with --public there is no file to write.")
    warn(key)
    if as_json:
        json_line(key)
        return
    click.echo(path if public is None else key.server)
    say(f"CURVE key {key.id} for {key.name!r} allows {', '.join(key.allow)}; {note}")


@curve.command("list")
@store
@as_json
@with_client
def list_curve(client: Client, as_json: bool) -> None:
    """List CURVE keys with their public keys.

    \b
    Example:
      miniq keys curve list
    """
    show_keys([key for key in client.list_keys() if key.public is not None], as_json)


@curve.command("revoke")
@click.argument("id")
@store
@with_client
def revoke_curve(client: Client, id: str) -> None:
    """Revoke a CURVE key; open connections with it are refused too.

    \b
    Example:
      miniq keys curve revoke 1f2e3d4c5b6a
    """
    revoke_key(client, id)


def revoke_key(client: Client, id: str) -> None:
    others = [key for key in client.list_keys() if key.id != id]
    client.revoke_key(id)
    click.echo(f"revoked {id}")
    if not others:
        say("that was the last key: the broker refuses every call until there is a new one; create it with --store")
    elif not any(manages(key.allow) for key in others):
        say("no other key allows admin on all queues: keys can now be changed only with --store")


def confirm_lockout(client: Client, allow: tuple[str, ...], yes: bool) -> None:
    """Ask before a key is created that requires keys of every caller, and lets none of them manage keys."""
    if not yes and not manages(allow) and client.whoami().open:
        text = "This first key locks everyone out of managing keys, except with --store: it does not allow admin."
        confirm(f"{text} Create it?", yes)


def manages(allow: Iterable[str]) -> bool:
    """Whether scopes include managing keys."""
    return not {"*", "admin", "*:*", "admin:*"}.isdisjoint(allow)


def warn(key: ApiKey) -> None:
    """Print what a new key changes for others."""
    for warning in key.warnings:
        say(f"warning: {warning}")


def create_pair(client: Client, name: str, allow: tuple[str, ...], path: str) -> ApiKey:
    """Register the public key of a new pair with the broker, and write both keys to a new file."""
    import zmq

    public, secret = (half.decode() for half in zmq.curve_keypair())
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        key = client.create_key(name, allow, public)
        text = f"# A CURVE key of MiniQ, {key.id}: whoever has this file can do what the key allows. Keep it secret.\n"
        text += f'public = "{public}"\nsecret = "{secret}"\nserver = "{key.server}"\n'
        os.write(file, text.encode())
    except BaseException:
        os.unlink(path)
        raise
    finally:
        os.close(file)
    return key


def show_keys(keys: list[ApiKey], as_json: bool) -> None:
    """Print keys; CURVE keys have their public key as one more column."""
    if as_json:
        for key in keys:
            json_line(key)
        return
    rows = []
    for key in keys:
        created = key.created_at.strftime("%Y-%m-%d %H:%M")
        rows.append((key.id, key.name, created, ", ".join(key.allow), *([key.public] if key.public else [])))
    table(("ID", "NAME", "CREATED", "ALLOWS", *(["PUBLIC"] if any(key.public for key in keys) else [])), rows)
