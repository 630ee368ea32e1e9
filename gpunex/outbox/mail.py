"""Queueing and delivering mail.

``queue`` is called inside the operation's transaction: the mail exists exactly if the operation does. ``deliver_due``
sends what is due; a mail server that is away costs tries with growing pauses, never the mail.
"""

from datetime import datetime, timedelta
from typing import Any

import structlog
from django.core.mail import EmailMultiAlternatives
from django.db import transaction

from gpunex.kit.secrets import decrypt, encrypt
from gpunex.outbox.models import Message

log = structlog.get_logger(__name__)
MOST_TRIES = 12


def queue(*, key: str, event: str, to: str, subject: str, text: str, html: str | None, at: datetime) -> Message:
    """Queue one mail under a business key; the same key again returns the first one and sends nothing twice."""
    message, _ = Message.objects.get_or_create(
        key=key[:200],
        defaults={
            "event": event,
            "to": to,
            "subject": " ".join(subject.split())[:300],
            "body": encrypt({"text": text, "html": html}),
            "next_try_at": at,
            "created_at": at,
        },
    )
    return message


def deliver_due(*, at: datetime, limit: int = 50) -> int:
    """Send what is due. Returns how many went out. One bad address never stops the rest."""
    sent = 0
    for pk in list(Message.objects.due(at).values_list("pk", flat=True)[:limit]):
        with transaction.atomic():
            message = (
                Message.objects.select_for_update(skip_locked=True).filter(pk=pk, state=Message.State.QUEUED).first()
            )
            if message is None:
                continue
            sent += _deliver(message, at)
    return sent


def _deliver(message: Message, at: datetime) -> bool:
    assert message.body is not None  # a body is blanked only once it is sent
    try:
        _send(message, decrypt(message.body))
    except Exception as error:
        # The server is away or refuses, or this mail alone cannot be put together: the row keeps the reason.
        message.tries += 1
        message.error = str(error)[:300]
        message.state = Message.State.FAILED if message.tries >= MOST_TRIES else Message.State.QUEUED
        message.next_try_at = at + timedelta(seconds=min(3600, 5 * 2**message.tries))
        message.save(update_fields=["tries", "error", "state", "next_try_at"])
        log.warning("mail_not_sent", event_name=message.event, tries=message.tries, error=message.error)
        return False
    message.state, message.sent_at, message.body, message.error = Message.State.SENT, at, None, ""
    message.save(update_fields=["state", "sent_at", "body", "error"])
    return True


def _send(message: Message, body: dict[str, Any]) -> None:
    mail = EmailMultiAlternatives(
        message.subject, body["text"], to=[message.to], headers={"X-GPUnex-Event": message.event}
    )
    if body["html"]:
        mail.attach_alternative(body["html"], "text/html")
    mail.send()
