"""An e-mail worker: backoff, permanent failures, and a handler for dead letters.

    miniq worker shop:app --concurrency 8          # in this folder
    python send.py ann@example.com bob@example.com

`SMTP` names the mail server (127.0.0.1:1025 by default; `python -m aiosmtpd -n` is one that prints what it gets).
"""

from __future__ import annotations

import logging
import os
import smtplib
from email.message import EmailMessage
from email.utils import parseaddr

import miniq

log = logging.getLogger("shop")
app = miniq.App()  # MINIQ_URL, or http://127.0.0.1:5000

RETRY = {"delay": float(os.environ.get("RETRY_DELAY", "2")), "factor": 3, "max": 600, "jitter": 0.2}


@app.task(queue="emails", timeout=30, max_receives=6, retry=RETRY)
def welcome(to: str, name: str = "") -> None:
    """Send one e-mail. An exception means: try again, after 2 s, 6 s, 18 s and so on."""
    if "@" not in parseaddr(to)[1]:
        raise miniq.Reject(f"{to!r} is not an address")  # no attempt will ever succeed
    mail = EmailMessage()
    mail["From"], mail["To"], mail["Subject"] = "shop@example.com", to, "Welcome"
    mail["Message-ID"] = f"<{miniq.current_message().id}@shop.example.com>"  # the same in each attempt
    mail.set_content(f"Hello {name or to}!\n")
    host, _, port = os.environ.get("SMTP", "127.0.0.1:1025").partition(":")
    try:
        with smtplib.SMTP(host, int(port), timeout=10) as server:
            server.send_message(mail)
    except smtplib.SMTPRecipientsRefused as error:
        raise miniq.Reject(f"{to}: refused by the mail server") from error


@app.handler("emails.dead")
def undeliverable(parameters: dict[str, str], message: miniq.Message) -> None:
    """E-mails that were given up. They are noted, and could be corrected and sent again."""
    dead = message.dead
    if dead is None:  # somebody sent it here
        return
    error = (dead.error or "").partition("\n")[0]
    log.warning("no e-mail to %s after %d attempts: %s", parameters["to"], dead.receives, error)
    app.queue("undeliverable").send({"to": parameters["to"], "why": dead.reason, "error": error})
