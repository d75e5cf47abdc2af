"""What the worker does."""

import smtplib

from celery import shared_task
from django.core.mail import send_mail


@shared_task(autoretry_for=(smtplib.SMTPException, OSError), retry_backoff=True)
def confirm(order: int, to: str) -> None:
    """Confirm an order by mail. It is tried again if the mail server is unreachable."""
    send_mail(f"Order {order}", "Thank you! Your order is on its way.", "shop@example.com", [to])


@shared_task
def ask_for_review(order: int, to: str) -> None:
    """Ask for a review; sent a week later, and kept by the broker until then."""
    send_mail(f"How was order {order}?", "Please tell us.", "shop@example.com", [to])
