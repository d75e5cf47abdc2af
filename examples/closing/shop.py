"""A fan-out with a schedule: each shop closes at 20:00 of its own day, and two programs want to know.

    python plan.py                                 # in this folder: the subscriptions and the schedules
    miniq worker shop:app
    miniq schedules run close-berlin               # without waiting for the evening

The broker keeps the time and publishes to the topic `shops`. `reports` gets every closing, `reorders` only those of
shops with a warehouse; each queue retries on its own. Reports are written to the folder `REPORTS` (default `reports`).
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

import miniq

app = miniq.App()  # MINIQ_URL, or http://127.0.0.1:5000


@dataclass
class Closing:
    shop: str


@app.handler("reports", max_receives=5)
def write_report(closing: Closing, message: miniq.Message) -> None:
    """One file per closing. Its name is the id of the message: a repeated delivery writes the same file again."""
    folder = Path(os.environ.get("REPORTS", "reports"))
    folder.mkdir(parents=True, exist_ok=True)
    report = {"shop": closing.shop, "closed_at": message.sent_at.isoformat()}
    (folder / f"{message.id}.json").write_text(json.dumps(report))


@app.handler("reorders", max_receives=5)
async def reorder(closing: Closing, message: miniq.AsyncMessage) -> None:
    """Ask the supplier for what was sold; `dedup_id` makes a repeated delivery harmless."""
    mq = await app.client_async()
    await mq.queue("supplier").send({"restock": closing.shop}, dedup_id=message.id)
