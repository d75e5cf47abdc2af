"""`miniq keys`: API keys and CURVE keys, created and revoked through a broker or, without one, on its store."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterable
from typing import Any

import click

from miniq.api.shapes import ApiKey
from miniq.cli.flags import Target, Whole, as_json, missing_store, require_store, store, target
from miniq.cli.output import json_line, table
from miniq.cli.queues import confirm
from miniq.cli.root import say
from miniq.client._sync.client import Client
from miniq.client.connection import connect
from miniq.errors import InvalidRequest

allow = click.option(
    "--allow",
    multiple=True,
    required=True,
    metavar="SPEC",
    help="VERB:PATTERN, or VERB alone for every queue and topic; may be repeated.",
)
yes = click.option("--yes", is_flag=True, help="Do not ask, even if it locks everyone out, or there is no store yet.")

max_queues = click.option(
    "--max-queues",
    type=Whole(0),
    metavar="N",
    help="Create no queue while N match its patterns, and no topic while N match.",
)


def with_client(command: Callable[..., None]) -> Callable[..., None]:
    """Pass a command a client of the broker, or of the store that `--store` names: the first key is created without a
    broker, perhaps before there is a store."""

    @functools.wraps(command)
    def called(at: Target, store: str | None, **flags: Any) -> None:
        if (store or at.url).startswith("memory"):
            raise InvalidRequest("store: a key in memory: would be gone at once; name a folder", field="store")
        if store is not None and "allow" not in flags:
            require_store(store, "store")
        elif store is not None and (folder := missing_store(store, "store")) is not None:
            confirm(f"There is no store in {folder}. Create one?", flags["yes"])
        with at.open() if store is None else connect(store) as client:
            command(client, **flags)

    return target(called)


@click.group(invoke_without_command=True)
@as_json
@target
@click.pass_context
def keys(ctx: click.Context, at: Target, as_json: bool) -> None:
    """Create, list and revoke API keys, and CURVE keys for ZeroMQ.

    Without a subcommand, it lists API keys, as `miniq keys list` does.

    Once there was a key of either kind, every call needs one. If all were revoked, create one with --store, while no
    broker has the folder open. A key allows VERB or VERB:PATTERN, where a verb is send, receive, publish, read,
    manage, admin or *, and a pattern is the name of a queue or topic with * for any characters.

    \b
    Examples:
      miniq keys create ops --allow '*' --store rocksdb:./miniq-data
      miniq keys create shop --allow 'send:orders.*' --allow 'read:orders.*'
      miniq keys list
      miniq keys revoke 1f2e3d4c5b6a
      miniq keys curve create worker --allow 'receive:orders.*'
    """
    ctx.obj = at
    if ctx.invoked_subcommand is None:
        with at.open() as client:
            show_api_keys(client, as_json)


@keys.command()
@click.argument("name")
@allow
@click.option("--aws", is_flag=True, help="Access key id and secret, for programs that speak Amazon SQS.")
@max_queues
@yes
@store
@as_json
@with_client
def create(
    client: Client, name: str, allow: tuple[str, ...], aws: bool, max_queues: int | None, yes: bool, as_json: bool
) -> None:
    """Create a key and print its secret, which is not shown again.

    \b
    Examples:
      miniq keys create shop --allow 'send:orders.*'
      miniq keys create shop --aws --allow 'send:orders' --allow 'receive:orders'
    """
    confirm_lockout(client, allow, yes)
    key = client.create_key(name, allow, max_queues=max_queues, aws=aws)
    warn(key)
    if as_json:
        json_line(key)
        return
    if key.access_key is not None:
        click.echo(f"AWS_ACCESS_KEY_ID={key.access_key}\nAWS_SECRET_ACCESS_KEY={key.secret}")
    else:
        click.echo(key.secret)
    say(f"key {key.id} for {key.name!r} allows {scopes(key)}; its secret is not shown again")


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
    show_api_keys(client, as_json)


@keys.command()
@click.argument("id")
@yes
@store
@with_client
def revoke(client: Client, id: str, yes: bool) -> None:
    """Revoke a key.

    \b
    Example:
      miniq keys revoke 1f2e3d4c5b6a
    """
    revoke_key(client, id, yes)


# CURVE keys


@keys.group()
def curve() -> None:
    """Create, list and revoke CURVE keys for ZeroMQ clients.

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
@max_queues
@yes
@store
@as_json
@with_client
def create_curve(
    client: Client,
    name: str,
    allow: tuple[str, ...],
    out: str | None,
    public: str | None,
    max_queues: int | None,
    yes: bool,
    as_json: bool,
) -> None:
    """Create a key pair, register its public key, and write the file that a client needs.

    \b
    Example:
      miniq keys curve create worker --allow 'receive:orders.*' --out worker.key
    """
    confirm_lockout(client, allow, yes)
    if public is None:
        path = out or f"{name}.key"
        key = create_pair(client, name, allow, path, max_queues)
        note = "the file is secret"
    elif out is None:
        key = client.create_key(name, allow, public, max_queues)
        note = "the broker's public key is printed above"
    else:
        raise click.UsageError("--out is for a key pair that is created here; with --public there is no file to write.")
    warn(key)
    if as_json:
        json_line(key)
        return
    click.echo(path if public is None else key.server)
    say(f"CURVE key {key.id} for {key.name!r} allows {scopes(key)}; {note}")


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
@yes
@store
@with_client
def revoke_curve(client: Client, id: str, yes: bool) -> None:
    """Revoke a CURVE key; open connections with it are refused too.

    \b
    Example:
      miniq keys curve revoke 1f2e3d4c5b6a
    """
    revoke_key(client, id, yes)


def revoke_key(client: Client, id: str, yes: bool) -> None:
    """Revoke a key; ask first if no key could manage keys then."""
    keys = client.list_keys()
    if id not in {key.id for key in keys} and (named := [key.id for key in keys if key.name == id]):
        raise click.UsageError(f"{id!r} is the name of a key: revoke takes the id. Its id is {' or '.join(named)}.")
    others = [key for key in keys if key.id != id]
    managing = {key.id for key in keys if manages(key.allow)}
    if keys and not others:
        confirm("This is the last key: the broker then refuses every call until --store creates one. Revoke it?", yes)
    elif managing == {id}:
        confirm("No other key allows admin: keys could then be changed only with --store. Revoke it?", yes)
    client.revoke_key(id)
    click.echo(f"revoked {id}")


def confirm_lockout(client: Client, allow: tuple[str, ...], yes: bool) -> None:
    """Ask before a key is created that requires keys of every caller, and lets none of them manage keys."""
    if not yes and not manages(allow) and client.whoami().open:
        if not sys.stdin.isatty():
            raise click.UsageError(
                "The first key does not allow admin, so keys could be managed only with --store on a stopped "
                "broker. Create an admin key first (--allow '*'), or pass --yes."
            )
        text = "This first key locks everyone out of managing keys, except with --store: it does not allow admin."
        confirm(f"{text} Create it?", yes)


def manages(allow: Iterable[str]) -> bool:
    """Whether scopes include managing keys."""
    return not {"*", "admin", "*:*", "admin:*"}.isdisjoint(allow)


def scopes(key: ApiKey) -> str:
    """What a key allows, in words."""
    return ", ".join(
        scope if ":" in scope or scope == "admin" else f"{scope} (every queue and topic)" for scope in key.allow
    )


def warn(key: ApiKey) -> None:
    """Print what a new key changes for others."""
    for warning in key.warnings:
        say(f"warning: {warning}")


def create_pair(client: Client, name: str, allow: tuple[str, ...], path: str, max_queues: int | None) -> ApiKey:
    """Register the public key of a new pair with the broker, and write both keys to a new file."""
    import zmq

    public, secret = (half.decode() for half in zmq.curve_keypair())
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        key = client.create_key(name, allow, public, max_queues)
        text = f"# A CURVE key of MiniQ, {key.id}: anyone with this file can do what the key allows. Keep it secret.\n"
        text += f'public = "{public}"\nsecret = "{secret}"\nserver = "{key.server}"\n'
        os.write(file, text.encode())
    except BaseException:
        os.unlink(path)
        raise
    finally:
        os.close(file)
    return key


def show_api_keys(client: Client, as_json: bool) -> None:
    """Print the keys that are not CURVE keys."""
    show_keys([key for key in client.list_keys() if key.public is None], as_json)


def show_keys(keys: list[ApiKey], as_json: bool) -> None:
    """Print keys; CURVE keys have their public key as one more column, keys for SQS their access key id."""
    if as_json:
        for key in keys:
            json_line(key)
        return
    rows = []
    more = {"PUBLIC": [key.public for key in keys], "ACCESS KEY": [key.access_key for key in keys]}
    shown = {head: values for head, values in more.items() if any(values)}
    for place, key in enumerate(keys):
        created = key.created_at.strftime("%Y-%m-%d %H:%M")
        most = "-" if key.max_queues is None else str(key.max_queues)
        others = [values[place] or "" for values in shown.values()]
        rows.append((key.id, key.name, created, most, ", ".join(key.allow), *others))
    table(("ID", "NAME", "CREATED", "MAX QUEUES", "ALLOWS", *shown), rows)
