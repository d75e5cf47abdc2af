"""An application with periodic tasks, for beats that are started as processes of their own."""

from __future__ import annotations

import json
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

from celery import Celery
from celery.schedules import crontab, schedule

FOLDER = Path(os.environ["MINIQ_TEST_FOLDER"])
TIMES: dict[str, Any] = {
    "quick": timedelta(seconds=0.5),
    "slow": timedelta(hours=5),
    "computed": schedule(1, relative=True),
    "every night": crontab(minute=0, hour=3),
}
app = Celery("beats", broker="filesystem://", set_as_current=False)
app.conf.update(
    beat_miniq_url=os.environ["MINIQ_TEST_BEAT"],
    timezone="Europe/Berlin",
    result_expires=None,  # no cleanup of results
    worker_hijack_root_logger=False,
    broker_transport_options={
        "data_folder_in": str(FOLDER),
        "data_folder_out": str(FOLDER),
        "control_folder": str(FOLDER / "control"),  # in the working directory by default
    },
    beat_schedule={
        name: {"task": f"do.{name}", "schedule": TIMES[time], "args": (name,)}
        for name, time in json.loads(os.environ["MINIQ_TEST_ENTRIES"]).items()
    },
)
