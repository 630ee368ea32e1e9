from datetime import UTC, datetime, timedelta

import pytest
from django.core import mail as django_mail
from django.core.mail.backends.locmem import EmailBackend
from django.db import transaction

from gpunex.outbox.mail import MOST_TRIES, deliver_due, queue
from gpunex.outbox.models import Message

pytestmark = pytest.mark.django_db
AT = datetime(2026, 10, 14, 14, 5, tzinfo=UTC)


class AwayBackend(EmailBackend):
    """A mail server that is away."""

    def send_messages(self, messages):
        raise ConnectionRefusedError("mail server away")


def put(key="application:1", at=AT):
    return queue(
        key=key,
        event="test",
        to="a@b.example",
        subject="Hello\nBcc: x@y",
        text="secret link",
        html="<p>secret link</p>",
        at=at,
    )


def test_a_mail_is_sent_once_and_its_body_is_blanked():
    message = put()
    assert b"secret" not in bytes(message.body)
    assert deliver_due(at=AT) == 1
    assert deliver_due(at=AT) == 0
    message.refresh_from_db()
    assert (message.state, message.body, message.sent_at) == (Message.State.SENT, None, AT)
    (sent,) = django_mail.outbox
    assert sent.body == "secret link"
    assert "\n" not in sent.subject


def test_the_same_key_is_one_mail():
    assert put().pk == put().pk
    deliver_due(at=AT)
    assert len(django_mail.outbox) == 1


def test_a_rolled_back_operation_sends_nothing():
    with pytest.raises(RuntimeError), transaction.atomic():
        put()
        raise RuntimeError
    assert deliver_due(at=AT) == 0


def test_a_mail_server_that_is_away_costs_tries_and_never_the_mail(settings):
    message = put()
    settings.MAILERS = {"default": {"BACKEND": f"{__name__}.AwayBackend"}}
    assert deliver_due(at=AT) == 0
    message.refresh_from_db()
    assert (message.state, message.tries) == (Message.State.QUEUED, 1)
    assert message.next_try_at > AT
    assert "away" in message.error


def test_after_many_tries_a_mail_is_marked_failed_for_a_person_to_see(settings):
    message = put()
    settings.MAILERS = {"default": {"BACKEND": f"{__name__}.AwayBackend"}}
    at = AT
    for _ in range(MOST_TRIES):
        deliver_due(at=at)
        at += timedelta(hours=2)
    message.refresh_from_db()
    assert message.state == Message.State.FAILED
    assert deliver_due(at=at) == 0


def test_a_mail_that_cannot_be_put_into_words_never_stops_the_rest():
    unreachable = queue(
        key="unreachable", event="test", to=f"a@{'\u0628' * 60}.example", subject="s", text="t", html=None, at=AT
    )
    unreadable = put(key="unreadable")
    Message.objects.filter(pk=unreadable.pk).update(body=b"encrypted with a key that is gone")
    good = put(key="good")
    assert deliver_due(at=AT) == 1
    good.refresh_from_db()
    unreachable.refresh_from_db()
    assert good.state == Message.State.SENT
    assert (unreachable.state, unreachable.tries) == (Message.State.QUEUED, 1)
    assert unreachable.error
