"""The bank's rail as somebody would attack it: a pause that is to hold, a bank that lies or talks too much."""

from datetime import timedelta

import pytest
from django.urls import reverse
from django.utils import timezone

from gpunex.accounts.models import Notice, User
from gpunex.kit.secrets import decrypt
from gpunex.outbox.models import Message
from gpunex.policy.models import Policy
from payouts import approvals, runs
from payouts.bank import answers, files, rates
from payouts.models import BankFile, BankImport, Payout, PayoutRun

from .conftest import USDC, earner, quote
from .replies import camt, entry, pain_002, status, tx
from .test_imports import BEFORE, MONDAY, NOW, handed_over, read, told
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
def test_one_administrator_cannot_pay_four_times_as_much_by_the_rate_that_he_enters(
    admin: User, second_admin: User
) -> None:
    """Neither in one jump that he confirms himself, nor in small steps. The caps count USDC: it is the rate that would be the theft."""
    quote("EUR", 1_000_000, by=admin, at=MONDAY, ago=timedelta(hours=2))
    friend = earner(60 * USDC, at=BEFORE)
    for minutes, micro in enumerate((951_000, 904_000, 859_000, 817_000)):
        rates.enter(currency="EUR", micro_per_unit=micro, source="x", quoted_at=MONDAY, by=admin, at=MONDAY)
        assert rates.jumped(rates.rate_in_force("EUR", MONDAY)) == (minutes > 0)
    payout = runs.pay_off_cycle(organisation=friend, by=admin, reason="x", at=NOW, amount_micro=30 * USDC)
    assert (payout.state, payout.run.cleared_at) == (Payout.State.RESERVED, None)
    runs.make_due(at=NOW)
    cycle = PayoutRun.objects.get(kind=PayoutRun.Kind.CYCLE)
    assert (cycle.payouts.count(), cycle.cleared_at) == (1, None)
    for run in (payout.run, cycle):
        with pytest.raises(files.RunNotCleared):
            files.make(run=run, by=admin, at=NOW)
    assert "exchange rate that jumped" in str(
        decrypt(Message.objects.get(key=f"run-waits:{cycle.public_id}:{admin.pk}").body or b"")
    )
    approvals.approve(payout=payout, by=second_admin, at=NOW)
    for one in (admin, second_admin):
        approvals.approve_run(run=cycle, by=one, at=NOW)
    assert [files.make(run=run, by=admin, at=NOW).new for run in (payout.run, cycle)] == [True, True]


@pytest.mark.spec("H3")
def test_a_rate_that_moved_as_rates_do_holds_nothing_up(admin: User) -> None:
    for days in (21, 14, 7, 0):
        day = MONDAY - timedelta(days=days)
        quote("EUR", 1_100_000 - days * 2_000, by=admin, at=day, ago=timedelta(minutes=1))
        assert not rates.jumped(rates.rate_in_force("EUR", day))
    earner(60 * USDC, at=BEFORE)
    runs.make_due(at=NOW)
    assert PayoutRun.objects.get().cleared_at == NOW


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
    written += [str(decrypt(mail.body or b"")) for mail in Message.objects.all()]
    written += [str(row.lines) for row in BankImport.objects.all()]
    assert not any("0532" in text or "000123" in text for text in written)


@pytest.mark.spec("H3")
def test_a_booking_of_thousands_of_transfers_is_read_and_more_than_any_bank_has_is_refused_early() -> None:
    """Each transfer of a booking was once looked for among all others of it, which took a worker for an hour."""
    within = answers.read(camt(entry("1.00", *[tx("GPX" + "0" * 32, "1.00")] * answers.MOST_LINES)))
    assert len(within.lines) == answers.MOST_LINES
    with pytest.raises(answers.TooLarge):
        answers.read(camt(entry("1.00", *["<TxDtls/>"] * 500_000)))
