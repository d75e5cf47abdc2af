"""Settings of Django. What MiniQ needs is in the last lines."""

import os
from pathlib import Path

FOLDER = Path(__file__).parent.parent

SECRET_KEY = "only for this example"  # noqa: S105
DEBUG = False
ALLOWED_HOSTS = ["127.0.0.1"]
ROOT_URLCONF = "shop.urls"
INSTALLED_APPS: list[str] = []
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
USE_TZ = True
EMAIL_BACKEND = "django.core.mail.backends.filebased.EmailBackend"
EMAIL_FILE_PATH = os.environ.get("MAILS", FOLDER / "mails")

CELERY_BROKER_URL = os.environ.get("BROKER_URL", "miniq://127.0.0.1:5000")
CELERY_TASK_ACKS_LATE = True
CELERY_TASK_IGNORE_RESULT = True
