"""A shop that confirms orders by mail. The app of Celery is loaded with Django, so that `delay` finds it."""

from .celery import app as celery

__all__ = ["celery"]
