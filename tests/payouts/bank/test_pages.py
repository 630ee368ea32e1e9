"""The bank account's page and the bank's part of the administration, as people use them."""

import re
from datetime import UTC, datetime, timedelta
from html import unescape

import pytest
from django.contrib.admin.models import LogEntry
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.urls import reverse
from django.utils import timezone, translation
from pytest_django import DjangoAssertNumQueries

from gpunex.accounts.models import Membership, Organisation, User
from gpunex.policy.models import Policy
from payouts import methods
from payouts.bank import transfers
from payouts.models import BankFile, BankImport, BankTransfer, FxRate, Payout, PayoutMethod, PayoutRun, Rail
from providers.models import Provider
from tests.billing.test_views import BACKEND, client_of, text_of
from tests.signin import confirm

from .conftest import IBAN, IBANS, USDC, earner, organisation, person, quote, sepa_account
from .replies import camt, entry, pain_002, status, tx
from .test_imports import handed_over

PAGE = "/provider/payouts/bank"
SEPA = {"country": "DE", "name": "Nour Haddad", "iban": "de89 3704 0044 0532 0130 00", "bic": ""}
ACH = {
    "country": "US",
    "name": "Nour Haddad",
    "holder": "company",
    "routing": "021000021",
    "account": "0001 2345 6789",
    "account_again": "000123456789",
    "account_type": "savings",
}


@pytest.fixture
def provider(at: datetime) -> Organisation:
    org = organisation("provider")
    Provider.objects.create(organisation=org, tier="community", approved_at=at, commitment_months=3)
    return org


def admin_client(admin: User) -> Client:
    client = Client()
    client.force_login(admin, backend=BACKEND)
    return client


# --- the provider's page ---------------------------------------------------------------------------------------------


@pytest.mark.spec("H3")
def test_the_country_comes_first_and_decides_what_is_asked(provider: Organisation) -> None:
    client = client_of(provider)
    first = client.get(PAGE)
    assert first.status_code == 200 and b'name="country"' in first.content and b'name="iban"' not in first.content
    german = client.get(PAGE, {"country": "DE"}).content
    assert b'name="iban"' in german and b'name="routing"' not in german
    american = client.get(PAGE, {"country": "US"}).content
    assert b'name="routing"' in american and b'name="iban"' not in american
    elsewhere = client.get(PAGE, {"country": "EG"}).content
    assert b'name="iban"' not in elsewhere and b'name="routing"' not in elsewhere
    assert "USDC on Solana works everywhere" in text_of(elsewhere)
    assert client.get(PAGE, {"country": "XX"}).status_code == 422


@pytest.mark.spec("H3")
def test_an_account_in_the_euro_area_is_kept_encrypted_and_shown_masked(provider: Organisation) -> None:
    client = client_of(provider)
    assert client.post(PAGE, SEPA).status_code == 302
    method = PayoutMethod.objects.get()
    assert (method.rail, method.masked, method.country, method.address) == ("sepa", "DE•• •••• 3000", "DE", "")
    assert methods.details_of(method) == {"name": "Nour Haddad", "iban": IBAN, "bic": "", "bank": "known"}
    assert IBAN.encode() not in bytes(method.details or b"")
    for page in (PAGE, reverse("providers:payouts")):
        shown = client.get(page).content.decode()
        assert "•••• 3000" in unescape(shown) and IBAN not in shown and "0532" not in shown


@pytest.mark.spec("H3")
def test_a_us_account_is_kept_with_its_zeros(provider: Organisation) -> None:
    assert client_of(provider).post(PAGE, ACH).status_code == 302
    method = PayoutMethod.objects.get()
    assert (method.rail, method.masked, method.country) == ("ach", "•••• 6789", "US")
    kept = methods.details_of(method)
    assert (kept["account"], kept["routing"], kept["account_type"], kept["holder"]) == (
        "000123456789",
        "021000021",
        "savings",
        "company",
    )


@pytest.mark.parametrize(
    ("sent", "field", "words"),
    [
        (SEPA | {"iban": "DE89370400440532013001"}, "iban", "check digits do not fit"),
        (SEPA | {"iban": ""}, "iban", "it stands on your statements"),
        (SEPA | {"iban": "GB29NWBK60161331926819"}, "iban", "no payouts to banks in United Kingdom"),
        (SEPA | {"bic": "NOTABIC"}, "bic", "the IBAN is enough"),
        (SEPA | {"name": "🦊"}, "name", "Latin letters"),
        (ACH | {"routing": "000000000"}, "routing", "No bank has this routing number"),
        (ACH | {"account": "12"}, "account", "4 to 17 digits"),
        (ACH | {"account_again": "000123456780"}, "account_again", "differ"),
        (ACH | {"account_type": "crypto"}, "account_type", ""),
    ],
)
def test_a_slip_is_refused_beside_its_field_and_what_was_typed_stays(
    sent: dict[str, str], field: str, words: str, provider: Organisation
) -> None:
    response = client_of(provider).post(PAGE, sent)
    body = unescape(response.content.decode())
    assert response.status_code == 422 and f'id="id_{field}_error"' in body
    assert words in text_of(response.content.replace(b"&#x27;", b"'"))
    assert "Nour Haddad" in body or "🦊" in body
    assert response["Cache-Control"] == "no-store"
    assert not PayoutMethod.objects.exists()


@pytest.mark.case("money-F49")
def test_a_bank_that_no_register_has_is_taken_once_its_owner_insists(provider: Organisation) -> None:
    client = client_of(provider)
    unknown = SEPA | {"iban": "DE17 1234 5678 0000 0000 01"}
    refused = client.post(PAGE, unknown)
    assert refused.status_code == 422 and b'name="sure"' in refused.content
    assert "No bank with the code 12345678" in text_of(refused.content)
    assert client.post(PAGE, unknown | {"sure": "on"}).status_code == 302
    assert methods.details_of(PayoutMethod.objects.get())["bank"] == ""


@pytest.mark.case("money-F52")
def test_a_bic_of_another_bank_than_the_ibans_is_taken(provider: Organisation) -> None:
    assert client_of(provider).post(PAGE, SEPA | {"bic": "deutdeff"}).status_code == 302
    assert methods.details_of(PayoutMethod.objects.get())["bic"] == "DEUTDEFF"


def test_a_change_waits_and_can_be_cancelled(provider: Organisation) -> None:
    client = client_of(provider)
    client.post(PAGE, SEPA)
    assert client.post(PAGE, SEPA).status_code == 422  # the very same account
    assert client.post(PAGE, SEPA | {"iban": IBANS[1], "country": "NL"}).status_code == 302
    shown = unescape(client.get(PAGE).content.decode())
    assert "DE•• •••• 3000" in shown and "NL•• •••• 4300" in shown
    assert methods.active_method(provider, timezone.now(), Rail.SEPA).masked == "DE•• •••• 3000"  # type: ignore[union-attr]
    assert client.post(reverse("payouts:bank_cancel"), {"rail": "sepa"}).status_code == 302
    assert methods.waiting_method(provider, timezone.now(), Rail.SEPA) is None
    assert client.post(reverse("payouts:bank_cancel"), {"rail": "nonsense"}).status_code == 302


def test_nothing_is_shown_or_changed_without_a_fresh_confirmation(provider: Organisation) -> None:
    client = client_of(provider)
    confirm(client, provider.created_by, seconds_ago=10_000)
    for response in (
        client.get(PAGE),
        client.post(reverse("payouts:bank_cancel"), {"rail": "sepa"}),
        client.post(reverse("payouts:bank_confirm"), {"rail": "sepa"}),
        client.post(PAGE, SEPA),
    ):
        assert response.status_code == 302 and "reauthenticate" in response["Location"]
    assert not PayoutMethod.objects.exists()
    # What was typed stands in the form again once that is done.
    confirm(client, provider.created_by)
    again = client.get(PAGE)
    assert "de89 3704 0044 0532 0130 00" in again.content.decode()
    assert IBAN not in str(dict(client.session))


def test_who_may_not_change_it_sees_who_may(provider: Organisation, at: datetime) -> None:
    sepa_account(provider, at=at)
    member = person("member")
    Membership.objects.create(organisation=provider, user=member, role=Membership.Role.MEMBER)
    client = Client()
    client.force_login(member, backend=BACKEND)
    confirm(client, member)
    session = client.session
    session["organisation"] = str(provider.public_id)
    session.save()
    response = client.get(PAGE)
    if response.status_code == 200:  # the member looks at this organisation
        assert b'name="country"' not in response.content
        assert client.post(PAGE, SEPA).status_code == 422
    assert PayoutMethod.objects.count() == 1


def test_somebody_who_provides_nothing_is_sent_to_the_roles(db: None) -> None:
    client = client_of(organisation("renter"))
    for response in (client.get(PAGE), client.post(reverse("payouts:bank_cancel"), {"rail": "sepa"})):
        assert response["Location"] == reverse("providers:roles")


@pytest.mark.spec("H3")
def test_after_a_return_the_page_asks_and_a_confirmation_ends_the_question(admin: User) -> None:
    (transfer,) = handed_over(1, by=admin)
    org = transfer.payout.organisation
    Provider.objects.create(organisation=org, tier="community", approved_at=timezone.now(), commitment_months=3)
    from payouts.bank import imports

    at = datetime(2026, 10, 22, tzinfo=UTC)
    for data in (
        camt(entry("30.00", tx(transfer.end_to_end_id, "30.00"))),
        camt(entry("30.00", tx(transfer.end_to_end_id, returned="AC04", words="closed"), credit=True), number="2"),
    ):
        imports.read_answer(data=data, filename="a", by=admin, at=at)
    client = client_of(org)
    shown = text_of(client.get(PAGE).content)
    assert "The bank sent a transfer back" in shown and "AC04 closed" in shown and "30.00 EUR" in shown
    assert client.post(reverse("payouts:bank_confirm"), {"rail": "sepa"}).status_code == 302
    assert "The bank sent a transfer back" not in text_of(client.get(PAGE).content)
    assert transfers.doubt(PayoutMethod.objects.get()) is None


def test_the_page_is_whole_in_arabic(provider: Organisation, at: datetime) -> None:
    sepa_account(provider, at=at)
    provider.created_by.language = "ar"
    provider.created_by.save()
    client = client_of(provider)
    client.cookies["django_language"] = "ar"
    with translation.override("ar"):
        body = client.get(PAGE, {"country": "US"}).content.decode()
    assert 'dir="rtl"' in body and '<bdi dir="ltr"' in body


# --- the administration ----------------------------------------------------------------------------------------------


@pytest.mark.spec("H3")
def test_a_rate_is_entered_with_its_source_and_a_jump_is_confirmed(admin: User, at: datetime) -> None:
    client, url = admin_client(admin), reverse("admin:payouts_fxrate_add")
    sent = {
        "currency": "EUR",
        "micro_per_unit": "1.085",
        "source": "ECB",
        "quoted_at": f"{at - timedelta(hours=1):%Y-%m-%dT%H:%M}",
    }
    assert client.get(url).status_code == 200
    assert client.post(url, sent | {"micro_per_unit": "1,085"}).status_code == 422
    assert client.post(url, sent | {"quoted_at": f"{at + timedelta(hours=1):%Y-%m-%dT%H:%M}"}).status_code == 422
    assert client.post(url, sent).status_code == 302
    assert FxRate.objects.get().micro_per_unit == 1_085_000
    jump = client.post(url, sent | {"micro_per_unit": "1.285"})
    assert jump.status_code == 422 and "18.4 %" in text_of(jump.content)
    assert client.post(url, sent | {"micro_per_unit": "1.285", "sure": "on"}).status_code == 302
    listed = text_of(client.get(reverse("admin:payouts_fxrate_changelist")).content)
    assert "1.285" in listed and "ECB" in listed
    assert LogEntry.objects.filter(content_type__model="fxrate").count() == 2


@pytest.mark.spec("H3")
def test_a_file_is_made_downloaded_twice_and_handed_over_and_each_step_is_on_record(
    admin: User, second_admin: User
) -> None:
    now = timezone.now()
    quote("EUR", USDC, by=admin, at=now)
    org = earner(30 * USDC, at=now - timedelta(minutes=5))
    run = pay_now(org, by=admin, at=now)
    client, other = admin_client(admin), admin_client(second_admin)
    page = client.get(reverse("admin:payouts_bankfile_add"))
    assert str(run.public_id) in page.content.decode()
    made = client.post(reverse("admin:payouts_bankfile_add"), {"run": str(run.public_id)})
    file = BankFile.objects.get()
    url = reverse("admin:payouts_bankfile_change", args=[file.pk])
    assert made["Location"] == url
    queued = text_of(client.get(reverse("admin:payouts_payout_change", args=[Payout.objects.get().pk])).content)
    assert f"It is in the file {file.message_id}" in queued
    assert "Take it back" not in queued  # the bank may have it already: it would be refused
    assert "1 EUR = 1.00 USDC" in queued
    assert other.post(reverse("admin:payouts_bankfile_add"), {"run": str(run.public_id)})["Location"] == url
    shown = text_of(client.get(url).content)
    assert "Download it, hand it to the bank once" in shown and IBAN not in shown
    first, second = (c.post(url, {"decision": "download"}) for c in (client, other))
    assert first.content == second.content and IBAN.encode() in first.content
    assert first["Content-Disposition"] == f'attachment; filename="{file.message_id}.xml"'
    assert client.post(url, {"decision": "exported"}).status_code == 302
    late = other.post(url, {"decision": "exported"})
    assert late.status_code == 422 or "Do not upload it again" in text_of(late.content)
    assert "do not upload it again" in text_of(other.get(url).content)
    told = list(
        LogEntry.objects.filter(content_type__model="bankfile").order_by("pk").values_list("user", "change_message")
    )
    assert [user for user, _message in told] == [admin.pk, admin.pk, second_admin.pk, admin.pk]
    assert Payout.objects.get().state == Payout.State.EXPORTED


def pay_now(org: Organisation, *, by: User, at: datetime) -> PayoutRun:
    from payouts import runs

    return runs.pay_off_cycle(organisation=org, by=by, reason="first payout", at=at).run


@pytest.mark.spec("H3")
def test_an_answer_is_uploaded_and_every_line_is_shown(admin: User) -> None:
    first, second = handed_over(2, by=admin)
    client, url = admin_client(admin), reverse("admin:payouts_bankimport_add")
    page = client.get(url)
    assert page.status_code == 200
    assert re.search(r">\s*Read it\s*</button>", page.content.decode())
    data = pain_002(
        status(first.end_to_end_id, "ACSC", amount="30.00"),
        status(second.end_to_end_id, "ACSC", amount="31.01"),
        status("OTHER", "ACSC", amount="1.00"),
    )
    for bad in (b"hello", b"", pain_002()):
        answer = client.post(url, {"file": SimpleUploadedFile("a.xml", bad)})
        assert answer.status_code == 422
    sent = client.post(url, {"file": SimpleUploadedFile("bank <answer>.xml", data)})
    row = BankImport.objects.get()
    assert sent["Location"] == reverse("admin:payouts_bankimport_change", args=[row.pk])
    shown = text_of(client.get(sent["Location"]).content)
    assert (
        "settled: the payout is paid" in shown
        and "the amount is another one: ours is 31.00 EUR" in shown
        and "not about a payout of ours" in shown
    )
    again = client.post(url, {"file": SimpleUploadedFile("again.xml", data)}, follow=True)
    assert "read before" in text_of(again.content)
    assert BankImport.objects.count() == 1
    listed = text_of(client.get(reverse("admin:payouts_bankimport_changelist")).content)
    assert "pain.002" in listed


def test_a_transfer_is_found_by_its_end_to_end_id(admin: User) -> None:
    first, second = handed_over(2, by=admin)
    url = reverse("admin:payouts_banktransfer_changelist")
    found = text_of(admin_client(admin).get(url, {"q": first.end_to_end_id}).content)
    assert first.end_to_end_id in found and second.end_to_end_id not in found
    assert "DE•• •••• 3000" in unescape(found) and IBAN not in found
    assert admin_client(admin).get(reverse("admin:payouts_banktransfer_change", args=[first.pk])).status_code == 200


def test_lists_do_not_ask_for_each_row(admin: User, django_assert_max_num_queries: DjangoAssertNumQueries) -> None:
    handed_over(5, by=admin)
    client = admin_client(admin)
    for name in ("bankfile", "banktransfer", "bankimport", "fxrate"):
        url = reverse(f"admin:payouts_{name}_changelist")
        client.get(url)
        with django_assert_max_num_queries(16):
            assert client.get(url).status_code == 200
    with django_assert_max_num_queries(24):
        client.get(reverse("admin:payouts_bankfile_change", args=[BankFile.objects.get().pk]))


def test_staff_without_the_permission_do_nothing(admin: User) -> None:
    handed_over(1, by=admin)
    clerk = person("clerk", is_staff=True)
    client = admin_client(clerk)
    for name in ("bankfile", "bankimport", "fxrate"):
        assert client.get(reverse(f"admin:payouts_{name}_add")).status_code == 403
    url = reverse("admin:payouts_bankfile_change", args=[BankFile.objects.get().pk])
    assert client.post(url, {"decision": "download"}).status_code in (302, 403)
    assert Policy.objects.exists() and BankTransfer.objects.count() == 1
