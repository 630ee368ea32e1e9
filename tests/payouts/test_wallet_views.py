"""Connecting a wallet as people do it: the address, the signature, the confirmation before both, and who may."""

from datetime import datetime, timedelta
from html import unescape

import pytest
import time_machine
from django.test import Client
from django.urls import reverse
from solders.keypair import Keypair

from billing import treasury
from gpunex.accounts.models import Membership, Organisation
from gpunex.chain.addresses import ata
from gpunex.outbox.models import Message
from payouts import challenges, methods
from payouts.models import PayoutMethod, Rail, WalletChallenge
from providers.models import Provider
from tests import chainkit
from tests.billing.test_views import BACKEND, client_of, text_of
from tests.signin import confirm
from tests.wallets import connect_wallet, sign

from .conftest import organisation, person

PASSWORD = "a long phrase nobody uses"


@pytest.fixture
def earner(at: datetime) -> Organisation:
    org = organisation("provider")
    Provider.objects.create(organisation=org, tier="community", approved_at=at, commitment_months=3)
    return org


@pytest.fixture
def key() -> Keypair:
    return Keypair()


def typed(address: str) -> dict[str, str]:
    return {"address": address, "last_characters": address[-6:]}


def name(client: Client, key: Keypair, *, front: str = "providers") -> str:
    """The first step; answers with the address of the second."""
    answer = client.post(reverse(f"{front}:connect_wallet"), typed(str(key.pubkey())))
    assert answer.status_code == 302
    return answer.headers["Location"]


@pytest.mark.spec("H2")
def test_a_wallet_is_named_proven_and_shown(earner: Organisation, key: Keypair) -> None:
    client = client_of(earner)
    assert reverse("providers:connect_wallet") in client.get(reverse("providers:payouts")).content.decode()
    step = name(client, key)
    page = client.get(step)
    challenge = WalletChallenge.objects.get()
    assert challenge.message in unescape(page.content.decode())
    assert b"js/wallet.js" in page.content
    assert not PayoutMethod.objects.exists()
    page = client.post(step, {"signature": sign(challenge, key)}, follow=True)
    assert page.redirect_chain[-1][0] == reverse("providers:payouts")
    assert str(key.pubkey()) in text_of(page.content)
    assert PayoutMethod.objects.get().verified_at is not None


@pytest.mark.spec("H2")
@pytest.mark.case("money-F44")
@pytest.mark.parametrize("kind", ["typo", "empty", "token account", "mint", "program", "ours", "off the curve", "0x"])
def test_each_address_that_is_no_wallet_is_refused_beside_the_field_and_kept(earner: Organisation, kind: str) -> None:
    wallet = chainkit.wallet()
    chainkit.give(wallet, 1)
    address = {
        "typo": "0" + wallet[1:],  # no digit of base58
        "empty": "",
        "token account": ata(wallet, treasury.mint()),
        "mint": treasury.mint(),
        "program": "TokenkegQfeZyiNwAJbNbGKPFXCWuBvf9Ss623VQ5DA",
        "ours": treasury.address(),
        "off the curve": ata(chainkit.wallet(), treasury.mint()),
        "0x": "0x52908400098527886E0F7030069857D2E4169EE7",
    }[kind]
    page = client_of(earner).post(reverse("providers:connect_wallet"), typed(address))
    assert page.status_code == 422
    assert page.context["form"].errors.get("address")
    assert b'class="error"' in page.content
    assert address in page.content.decode()
    assert not WalletChallenge.objects.exists()


def test_other_last_characters_are_refused(earner: Organisation) -> None:
    page = client_of(earner).post(
        reverse("providers:connect_wallet"), {"address": chainkit.wallet(), "last_characters": "aaaaaa"}
    )
    assert page.status_code == 422
    assert page.context["form"].errors.get("last_characters")


def test_a_silent_chain_is_said_and_nothing_is_changed(earner: Organisation) -> None:
    chainkit.faults(rpc_down=True)
    page = client_of(earner).post(reverse("providers:connect_wallet"), typed(chainkit.wallet()))
    assert page.status_code == 422
    assert "did not answer" in text_of(page.content)
    assert not WalletChallenge.objects.exists()


@pytest.mark.parametrize("signature", ["", "abc", "x" * 500, "2" * 88])
def test_a_signature_that_does_not_fit_is_refused_beside_the_field_and_kept(
    earner: Organisation, key: Keypair, signature: str
) -> None:
    client = client_of(earner)
    page = client.post(name(client, key), {"signature": signature})
    assert page.status_code == 422
    assert page.context["form"].errors.get("signature")
    assert signature in page.content.decode()
    assert not PayoutMethod.objects.exists()


def test_the_text_of_a_stranger_or_of_a_colleague_is_not_there(earner: Organisation, key: Keypair) -> None:
    step = name(client_of(earner), key)
    colleague = person("colleague")
    Membership.objects.create(user=colleague, organisation=earner, role=Membership.Role.OWNER)
    client = Client()
    client.force_login(colleague, backend=BACKEND)
    client.session["organisation"] = str(earner.public_id)
    confirm(client, colleague)
    assert client.get(step).status_code == 404
    assert client.post(step, {"signature": sign(WalletChallenge.objects.get(), key)}).status_code == 404
    assert not PayoutMethod.objects.exists()


def test_a_text_that_is_over_leads_to_a_new_one_with_the_address_filled_in(
    earner: Organisation, key: Keypair, at: datetime
) -> None:
    client = client_of(earner)
    step = name(client, key)
    challenge = WalletChallenge.objects.get()
    WalletChallenge.objects.update(expires_at=challenge.created_at)
    page = client.get(step)
    assert "can no longer be signed" in text_of(page.content) and b'name="signature"' not in page.content
    answer = client.post(step, {"signature": sign(challenge, key)}, follow=True)
    assert str(key.pubkey()) in answer.content.decode() and b'name="last_characters"' in answer.content
    assert "10 minutes" in text_of(answer.content)
    assert not PayoutMethod.objects.exists()


def test_a_text_is_not_used_twice(earner: Organisation, key: Keypair) -> None:
    client = client_of(earner)
    step = name(client, key)
    signature = sign(WalletChallenge.objects.get(), key)
    client.post(step, {"signature": signature})
    answer = client.post(step, {"signature": signature}, follow=True)
    assert "used already" in text_of(answer.content)
    assert PayoutMethod.objects.count() == 1


@pytest.mark.parametrize("role", ["member", "viewer"])
def test_members_and_viewers_see_who_may_and_change_nothing(earner: Organisation, at: datetime, role: str) -> None:
    connect_wallet(earner, at=at)
    looker = person("looker")
    Membership.objects.create(user=looker, organisation=earner, role=role)
    client = Client()
    client.force_login(looker, backend=BACKEND)
    payouts = client.get(reverse("providers:payouts"))
    assert reverse("providers:connect_wallet") not in payouts.content.decode()
    assert earner.created_by.full_name or earner.created_by.email in text_of(payouts.content)
    page = client.get(reverse("providers:connect_wallet"))
    assert page.status_code == 200 and b'name="address"' not in page.content
    assert earner.created_by.email in text_of(page.content) or earner.created_by.full_name in text_of(page.content)
    confirm(client, looker)
    assert client.post(reverse("providers:connect_wallet"), typed(chainkit.wallet())).status_code == 422
    client.post(reverse("providers:cadence"), {"cadence": "monthly"})
    client.post(reverse("providers:cancel_wallet"))
    assert methods.cadence_of(earner).next_cadence == ""
    assert PayoutMethod.objects.count() == 1


def test_a_change_waits_and_can_be_cancelled(earner: Organisation, at: datetime) -> None:
    client, first = client_of(earner), connect_wallet(earner, at=at)
    key = Keypair()
    step = name(client, key)
    told = client.post(step, {"signature": sign(WalletChallenge.objects.latest("pk"), key)}, follow=True)
    assert "payouts go to the new wallet" in text_of(told.content)
    assert "A change is waiting" in text_of(told.content)
    assert methods.active_method(earner, at + timedelta(minutes=1)) == first
    client.post(reverse("providers:cancel_wallet"))
    assert "A change is waiting" not in text_of(client.get(reverse("providers:payouts")).content)
    assert methods.active_method(earner, at + timedelta(days=9)) == first


@pytest.mark.spec("G3")
def test_a_renter_who_is_no_provider_connects_one_in_his_own_front(at: datetime, key: Keypair) -> None:
    renter = organisation("renter")
    client = client_of(renter)
    assert client.get(reverse("providers:connect_wallet")).headers["Location"] == reverse("providers:roles")
    page = client.get(reverse("payouts:connect_wallet"))
    assert b'data-front="renter"' in page.content
    step = name(client, key, front="payouts")
    answer = client.post(step, {"signature": sign(WalletChallenge.objects.get(), key)})
    assert answer.headers["Location"] == reverse("payouts:return_balance")
    assert methods.active_method(renter, at + timedelta(minutes=1)).address == str(key.pubkey())


@pytest.mark.spec("G3")
def test_a_renter_changes_the_wallet_is_told_of_it_and_cancels_it_where_money_is_taken_out(
    at: datetime, key: Keypair
) -> None:
    renter = organisation("renter")
    connect_wallet(renter, key=key, at=at - timedelta(days=9))
    client, page, other = client_of(renter), reverse("payouts:return_balance"), Keypair()
    assert reverse("payouts:connect_wallet") in client.get(page).content.decode()
    step = name(client, other, front="payouts")
    client.post(step, {"signature": sign(WalletChallenge.objects.get(address=str(other.pubkey())), other)})
    shown = text_of(client.get(page).content)
    assert "A change is waiting" in shown
    mails = Message.objects.filter(to=renter.created_by.email)
    assert mails.filter(event="balance_wallet_changes").count() == 1
    assert not mails.filter(event__startswith="wallet_").exists()
    answer = client.post(reverse("payouts:cancel_wallet"))
    assert answer.headers["Location"] == page
    assert "A change is waiting" not in text_of(client.get(page).content)
    assert methods.active_method(renter, at + timedelta(days=9)).address == str(key.pubkey())
    assert mails.filter(event="balance_wallet_dropped").count() == 1


def test_a_wrong_verb_is_refused(earner: Organisation, key: Keypair) -> None:
    client = client_of(earner)
    assert client.get(reverse("providers:cancel_wallet")).status_code == 405
    assert client.put(reverse("providers:connect_wallet")).status_code == 405
    assert client.delete(name(client, key)).status_code == 405


# --- a fresh sign-in -------------------------------------------------------------------------------------------------


@pytest.fixture
def stale(earner: Organisation) -> Client:
    """A browser that somebody left open: signed in, nothing confirmed."""
    earner.created_by.set_password(PASSWORD)
    earner.created_by.save()
    client = Client()
    client.force_login(earner.created_by, backend=BACKEND)
    return client


@pytest.mark.spec("H2")
@pytest.mark.parametrize("page", ["connect_wallet", "prove_wallet"])
def test_an_open_session_alone_opens_no_page_of_wallets(
    stale: Client, earner: Organisation, at: datetime, key: Keypair, page: str
) -> None:
    challenge = challenges.issue(organisation=earner, address=str(key.pubkey()), by=earner.created_by, at=at)
    url = reverse(f"providers:{page}", args=[challenge.public_id] if page == "prove_wallet" else [])
    answer = stale.get(url)
    assert answer.status_code == 302
    assert answer.headers["Location"] == f"{reverse('account_reauthenticate')}?next={url.replace('/', '%2F')}"
    signed = {"signature": sign(challenge, key)} | typed(str(key.pubkey()))
    assert stale.post(url, signed).headers["Location"].startswith(reverse("account_reauthenticate"))
    assert not PayoutMethod.objects.exists()
    challenge.refresh_from_db()
    assert challenge.used_at is None


@pytest.mark.spec("H1", "H2")
@pytest.mark.parametrize(("page", "data"), [("cancel_wallet", {}), ("cadence", {"cadence": "monthly"})])
def test_an_open_session_alone_cancels_and_chooses_nothing(
    stale: Client, earner: Organisation, at: datetime, page: str, data: dict[str, str]
) -> None:
    connect_wallet(earner, at=at)
    connect_wallet(earner, at=at)
    answer = stale.post(reverse(f"providers:{page}"), data, follow=True)
    assert "Nothing was changed yet" in text_of(answer.content)
    assert methods.waiting_method(earner, at + timedelta(minutes=1)) is not None
    assert methods.cadence_of(earner).next_cadence == ""
    back = stale.post(answer.redirect_chain[-1][0], {"password": PASSWORD})
    assert back.headers["Location"] == reverse("providers:payouts")


def test_what_was_typed_stands_in_the_form_again_after_the_confirmation(stale: Client, key: Keypair) -> None:
    page = reverse("providers:connect_wallet")
    answer = stale.post(page, typed(str(key.pubkey())))
    assert str(key.pubkey()) not in str(dict(stale.session)), "it is kept encrypted"
    back = stale.post(answer.headers["Location"], {"password": PASSWORD})
    assert back.headers["Location"] == page
    form = stale.get(page).context["form"]
    assert form["address"].value() == str(key.pubkey())
    assert form["last_characters"].value() == str(key.pubkey())[-6:]
    assert stale.get(page).context["form"]["address"].value() == "", "once"


def test_a_confirmation_is_good_for_a_quarter_of_an_hour(stale: Client, earner: Organisation, key: Keypair) -> None:
    page = reverse("providers:connect_wallet")
    assert confirm(stale, earner.created_by, seconds_ago=899 - 5).get(page).status_code == 200
    assert confirm(stale, earner.created_by, seconds_ago=901).get(page).status_code == 302
    # The form was opened in time and is sent too late.
    confirm(stale, earner.created_by)
    assert stale.get(page).status_code == 200
    with time_machine.travel(datetime.now().astimezone() + timedelta(minutes=16), tick=True):
        assert stale.post(page, typed(str(key.pubkey()))).status_code == 302
    assert not WalletChallenge.objects.exists()


def test_a_confirmation_of_one_person_is_not_anothers(earner: Organisation, stale: Client) -> None:
    assert confirm(stale, organisation("other").created_by).get(reverse("providers:connect_wallet")).status_code == 302


def test_htmx_is_sent_to_the_confirmation_as_a_whole_page(stale: Client) -> None:
    answer = stale.post(
        reverse("providers:cadence"),
        {"cadence": "monthly"},
        headers={"HX-Request": "true", "HX-Current-URL": "http://testserver/provider/payouts"},
    )
    assert answer.status_code == 200 and answer.content == b""
    assert answer.headers["HX-Redirect"].startswith(reverse("account_reauthenticate"))


@pytest.mark.parametrize(
    "sender", ["https://evil.example/x", "//evil.example", "javascript:alert(1)", "/\\evil.example"]
)
def test_a_confirmation_never_leads_away_from_the_site(stale: Client, key: Keypair, sender: str) -> None:
    answer = stale.post(reverse("providers:connect_wallet"), typed(str(key.pubkey())), headers={"Referer": sender})
    assert "evil" not in answer.headers["Location"] and "javascript" not in answer.headers["Location"]


def test_signed_out_people_are_sent_to_sign_in(earner: Organisation) -> None:
    answer = Client().get(reverse("providers:connect_wallet"))
    assert answer.headers["Location"].startswith(reverse("account_login"))


# --- several destinations --------------------------------------------------------------------------------------------


def with_bank(org: Organisation, *, at: datetime) -> PayoutMethod:
    details = {"name": "Layla Mansour", "iban": "DE89370400440532013000", "bic": ""}
    return methods.keep_method(
        organisation=org, rail=Rail.SEPA, details=details, masked="DE••••3000", country="DE", by=org.created_by, at=at
    )


@pytest.mark.spec("H1", "H2")
def test_with_a_wallet_and_a_bank_account_one_chooses_where_the_next_payouts_go(
    earner: Organisation, at: datetime
) -> None:
    wallet = connect_wallet(earner, at=at)
    client, page = client_of(earner), reverse("providers:payouts")
    assert b'name="rail"' not in client.get(page).content, "one destination is no choice"
    with_bank(earner, at=at)
    text = client.get(page).content.decode()
    assert wallet.address in text and "DE••••3000" in text and "DE8937" not in text
    told = client.post(reverse("payouts:rail"), {"rail": "sepa"}, follow=True)
    assert "from the next period" in text_of(told.content)
    assert methods.rail_of(earner) == Rail.USDC and methods.cadence_of(earner).next_rail == Rail.SEPA
    client.post(reverse("payouts:rail"), {"rail": "usdc"})
    assert methods.cadence_of(earner).next_rail == ""


@pytest.mark.parametrize("rail", ["ach", "", "cash", "usdc; drop"])
def test_a_way_that_leads_nowhere_is_not_chosen(earner: Organisation, at: datetime, rail: str) -> None:
    connect_wallet(earner, at=at)
    client_of(earner).post(reverse("payouts:rail"), {"rail": rail})
    assert methods.cadence_of(earner).next_rail == "" and methods.rail_of(earner) == Rail.USDC


def test_an_open_session_alone_chooses_no_way(stale: Client, earner: Organisation, at: datetime) -> None:
    connect_wallet(earner, at=at)
    with_bank(earner, at=at)
    assert stale.post(reverse("payouts:rail"), {"rail": "sepa"}).status_code == 302
    assert methods.cadence_of(earner).next_rail == ""
