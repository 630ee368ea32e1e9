"""Sweep: deliver queued mail. Late or twice is harmless: a sent row is not due."""

from celery import shared_task
from django.utils import timezone

from gpunex.outbox.mail import deliver_due


@shared_task
def deliver_mail() -> int:
    return deliver_due(at=timezone.now())
