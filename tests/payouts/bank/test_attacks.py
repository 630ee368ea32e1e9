"""The bank's rail as somebody would attack it: a pause that is to hold, a bank that lies or talks too much."""

from datetime import timedelta

import pytest
from django.urls import reverse
from django.utils import timezone

from gpunex.accounts.models import Notice, User
from gpunex.kit.secrets import decrypt
from gpunex.outbox.models import Message
from gpunex.policy.models import Policy
from payouts.models import BankFile, BankImport, Payout

from .conftest import USDC, earner, quote
from .replies import camt, entry, pain_002, status, tx
from .test_imports import handed_over, read, told
from .test_pages import admin_client, pay_now


@pytest.mark.spec("H3")
def test_while_payouts_are_paused_no_file_is_given_out_that_is_not_with_the_bank_yet(admin: User) -> None:
    """A file that was made before the pause would still be paid if somebody carried it to the bank."""
    now = timezone.now()
    quote("EUR", USDC, by=admin, at=now)
    run = pay_now(earner(30 * USDC, at=now - timedelta(minutes=5)), by=admin, at=now)
    client = admin_client(admin)
    client.post(reverse("admin:payouts_bankfile_add"), {"run": str(run.public_id)})
    url = reverse("admin:payouts_bankfile_change", args=[BankFile.objects.get().pk])
    Policy.objects.update(payouts_paused=True)
    refused = client.post(url, {"decision": "download"})
    assert refused.status_code == 422 and "Payouts are paused" in refused.content.decode()
    assert client.post(url, {"decision": "exported"}).status_code == 302, "what has happened is recorded all the same"
    assert client.post(url, {"decision": "download"}).status_code == 200


@pytest.mark.spec("H3")
def test_an_account_number_in_the_banks_words_reaches_no_mail_no_notice_and_no_list(admin: User) -> None:
    first, second = handed_over(2, by=admin)
    words = "Konto DE89 3704 0044 0532 0130 00 des Nour ist erloschen, siehe 000123456789"
    read(pain_002(status(first.end_to_end_id, "RJCT", reason="AC04", words=words)), by=admin)
    settled, back = tx(second.end_to_end_id, "31.00"), tx(second.end_to_end_id, "31.00", returned="AC04", words=words)
    read(camt(entry("31.00", settled)), by=admin)
    read(camt(entry("31.00", back, credit=True), number="2"), by=admin)
    for transfer, state in ((first, Payout.State.FAILED), (second, Payout.State.RETURNED)):
        assert told(transfer)[1:] == (state, "AC04 Konto •••• 3000 des Nour ist erloschen, siehe •••• 6789")
    written = [str(notice.data) for notice in Notice.objects.all()]
    written += [str(decrypt(mail.body)) for mail in Message.objects.all()]
    written += [str(row.lines) for row in BankImport.objects.all()]
    assert not any("0532" in text or "000123" in text for text in written)
