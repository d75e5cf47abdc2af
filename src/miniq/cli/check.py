"""`miniq check`: whether a store or a backup is sound."""

from __future__ import annotations

import os

import click
import msgspec

from miniq.cli.flags import as_json, without_broker
from miniq.cli.output import plural, progress_bar, result, size
from miniq.client.url import folder_of, without_password
from miniq.errors import InvalidRequest


@click.command()
@click.argument("folder")
@as_json
def check(folder: str, as_json: bool) -> int:
    """Say whether a store or a backup is sound. Reads everything in it.

    Verifies all files, reads every record, and compares the counts of each queue with its messages. Nothing in FOLDER
    is changed; a folder that a broker has open is refused: check a backup of it. Exit code 0 if it is sound, 1 if it is
    damaged, or nothing tells whether it is complete, or it could not be checked.

    \b
    Examples:
      miniq check ./miniq-data
      miniq check /var/backups/miniq-monday --json
    """
    from miniq.store.embedded.check import check as check_folder

    path = folder_of(folder, "folder")
    if path is None:
        raise click.UsageError(f"{without_password(folder)!r} is not a folder; only those can be checked.")
    if not os.path.isdir(path):
        raise click.UsageError(f"There is no folder {path!r}.")
    try:
        with without_broker("stop that one, or check a backup of it"), progress_bar() as progress:
            report = check_folder(path, progress)
    except InvalidRequest as error:
        raise click.UsageError(error.text) from None
    messages = sum(queue.messages for queue in report.queues)
    verdict = "damaged" if report.damage else "unverified" if report.unverified else "sound"
    lines = [
        f"{verdict}: {report.kind} {path} ({plural(report.files, 'file')}, {size(report.bytes)}; "
        f"{plural(len(report.queues), 'queue')}, {plural(messages, 'message')} read)",
        *(f"  damaged: {text}" for text in report.damage),
        *(f"  not verified: {text}" for text in report.unverified),
        *(f"  damaged, but not needed: {text}" for text in report.not_needed),
    ]
    if report.damage:
        lines += [
            f"  readable: {queue.messages} of {queue.expected} messages of queue {queue.name!r}"
            for queue in report.queues
        ]
        lines.append(
            "  to do: restore the newest sound backup (miniq restore BACKUP NEWFOLDER), or put back the undamaged "
            "file; keep this folder until then"
            if report.kind == "store"
            else "  to do: use another backup, or put back the undamaged file"
        )
    result(as_json, {"verdict": verdict, "messages": messages, **msgspec.structs.asdict(report)}, "\n".join(lines))
    return 0 if verdict == "sound" else 1
