"""Proof of a wallet by signature: what is accepted, and every other thing that is not."""

import base64
from datetime import datetime, timedelta

import pytest
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from solders.signature import Signature

from billing import deposits, treasury
from gpunex.accounts.models import Membership, Organisation
from gpunex.chain import addresses
from gpunex.chain.addresses import ata
from payouts import challenges, methods
from payouts.models import PayoutMethod, WalletChallenge
from tests import chainkit
from tests.billing.test_ledger import together
from tests.wallets import sign

from .conftest import organisation, person

# The group order of ed25519: adding it to the second half of a signature gives another one that a lenient verifier accepts.
ORDER = 2**252 + 27742317777372353535851937790883648493


@pytest.fixture
def org(at: datetime) -> Organisation:
    return organisation("layla")


@pytest.fixture
def key() -> Keypair:
    return Keypair()


@pytest.fixture
def challenge(org: Organisation, key: Keypair, at: datetime) -> WalletChallenge:
    return challenges.issue(organisation=org, address=str(key.pubkey()), by=org.created_by, at=at)


def prove(challenge: WalletChallenge, signature: str, *, at: datetime) -> PayoutMethod:
    return challenges.prove(
        challenge=challenge, signature=signature, organisation=challenge.organisation, by=challenge.user, at=at
    )


def refused(challenge: WalletChallenge, signature: str, refusal: type[Exception], *, at: datetime) -> None:
    with pytest.raises(refusal):
        prove(challenge, signature, at=at)
    challenge.refresh_from_db()
    assert challenge.used_at is None, "a refusal uses nothing up"
    assert not PayoutMethod.objects.exists()


@pytest.mark.spec("H2")
def test_the_text_says_who_asks_for_what_and_until_when(
    org: Organisation, key: Keypair, challenge: WalletChallenge
) -> None:
    for part in ("localhost", str(key.pubkey()), str(org.public_id), "moves no money", "Nonce "):
        assert part in challenge.message
    assert f"expires {challenge.expires_at:%Y-%m-%d %H:%M:%S} UTC" in challenge.message
    assert challenge.message.isascii() and challenge.message.isprintable()
    assert len(challenge.message) <= 1147, "a Ledger shows no more"
    assert "'" not in challenge.message, "it is pasted between quotes"


def test_two_texts_for_the_same_wallet_are_never_the_same(org: Organisation, key: Keypair, at: datetime) -> None:
    texts = {
        challenges.issue(organisation=org, address=str(key.pubkey()), by=org.created_by, at=at).message
        for _ in range(3)
    }
    assert len(texts) == 3


@pytest.mark.parametrize("name", ["شركة النيل", 'Nile "Compute"', "Nile's", "Nile\nCompute", "N" * 120, "😀"])
def test_a_name_that_a_ledger_cannot_show_is_left_out(org: Organisation, key: Keypair, at: datetime, name: str) -> None:
    org.name = name
    org.save()
    challenge = challenges.issue(organisation=org, address=str(key.pubkey()), by=org.created_by, at=at)
    assert name not in challenge.message
    assert challenge.message.isascii() and challenge.message.isprintable() and str(org.public_id) in challenge.message
    assert prove(challenge, sign(challenge, key), at=at).verified_at == at


@pytest.mark.spec("H2")
@pytest.mark.parametrize("spelling", ["base58", "base64", "hex", "HEX", "with space around"])
def test_a_signature_is_understood_in_each_spelling(
    challenge: WalletChallenge, key: Keypair, at: datetime, spelling: str
) -> None:
    raw = bytes(key.sign_message(challenge.message.encode()))
    text = {
        "base58": str(Signature.from_bytes(raw)),
        "base64": base64.b64encode(raw).decode(),
        "hex": raw.hex(),
        "HEX": raw.hex().upper(),
        "with space around": f" {Signature.from_bytes(raw)}\n",
    }[spelling]
    method = prove(challenge, text, at=at)
    assert method.proof == {
        "message": challenge.message,
        "signature": str(Signature.from_bytes(raw)),
        "way": "text",
    }


@pytest.mark.spec("H2")
@pytest.mark.parametrize("kind", [challenges.RESTRICTED_ASCII, challenges.LIMITED_UTF8])
@pytest.mark.parametrize("way", ["offchain", "offchain-signers"])
def test_an_off_chain_envelope_is_accepted_in_both_layouts(
    challenge: WalletChallenge, key: Keypair, at: datetime, kind: bytes, way: str
) -> None:
    signer = bytes(key.pubkey()) if way == "offchain-signers" else None
    envelope = challenges.offchain(challenge.message.encode(), kind=kind, signer=signer)
    assert prove(challenge, str(key.sign_message(envelope)), at=at).proof["way"] == way


def test_the_envelopes_are_byte_for_byte_those_of_the_command_line_and_of_ledger() -> None:
    """The short one is the test vector of the Solana SDK; the long one is laid out as Ledger's app parses it."""
    expected = b"\xffsolana offchain\x00\x00\x0c\x00Test Message"
    assert challenges.offchain(b"Test Message") == expected
    long = challenges.offchain(b"hello", signer=bytes([7] * 32))
    assert long[:17] == b"\xffsolana offchain\x00"
    assert long[17:49] == bytes(32)
    assert long[49:51] == b"\x00\x01"
    assert long[51:83] == bytes([7] * 32)
    assert long[83:] == b"\x05\x00hello"


def test_an_envelope_that_names_another_signer_is_refused(
    challenge: WalletChallenge, key: Keypair, at: datetime
) -> None:
    envelope = challenges.offchain(challenge.message.encode(), signer=bytes(Keypair().pubkey()))
    refused(challenge, str(key.sign_message(envelope)), challenges.SignedByAnotherKey, at=at)


def test_another_keys_signature_is_refused(challenge: WalletChallenge, at: datetime) -> None:
    refused(challenge, sign(challenge, Keypair()), challenges.SignedByAnotherKey, at=at)


def test_a_signature_of_an_altered_text_is_refused(challenge: WalletChallenge, key: Keypair, at: datetime) -> None:
    for text in (challenge.message + " ", challenge.message[:-1], challenge.message.upper(), "", "hello"):
        signature = str(key.sign_message(text.encode()))
        refused(challenge, signature, challenges.SignedByAnotherKey, at=at)


def test_a_signature_of_another_challenge_is_refused(
    org: Organisation, challenge: WalletChallenge, key: Keypair, at: datetime
) -> None:
    other = challenges.issue(organisation=org, address=str(key.pubkey()), by=org.created_by, at=at)
    refused(challenge, sign(other, key), challenges.SignedByAnotherKey, at=at)


def test_a_malleable_signature_is_refused(challenge: WalletChallenge, key: Keypair, at: datetime) -> None:
    raw = bytes(key.sign_message(challenge.message.encode()))
    scalar = int.from_bytes(raw[32:], "little") + ORDER
    refused(
        challenge,
        str(Signature.from_bytes(raw[:32] + scalar.to_bytes(32, "little"))),
        challenges.SignedByAnotherKey,
        at=at,
    )


def test_a_key_of_small_order_proves_nothing() -> None:
    """With the neutral point as key, an all-zero signature fits every text for a verifier that is not strict."""
    neutral = bytes([1] + [0] * 31)
    with pytest.raises(challenges.SignedByAnotherKey):
        challenges.verify(address=str(Pubkey.from_bytes(neutral)), message="any", signature=(neutral + bytes(32)).hex())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1",
        "1" * 63,
        "1" * 88,
        "0" * 88,
        "2" * 80,
        "2" * 89,
        "ab" * 63,
        "ab" * 65,
        "Ab" * 64,
        "A" * 88,
        "=" * 88,
        "٣" * 88,
        "\x00" * 64,
        "{}",
        base64.b64encode(bytes(63)).decode(),
        base64.b64encode(bytes(65)).decode(),
    ],
)
def test_what_is_no_signature_is_refused_as_such(challenge: WalletChallenge, at: datetime, text: str) -> None:
    with pytest.raises((challenges.NotASignature, challenges.SignedByAnotherKey)):
        prove(challenge, text, at=at)
    assert not PayoutMethod.objects.exists()


def test_a_text_is_good_for_ten_minutes(challenge: WalletChallenge, key: Keypair, at: datetime) -> None:
    refused(challenge, sign(challenge, key), challenges.ChallengeExpired, at=at + timedelta(minutes=10))
    last = at + timedelta(minutes=10) - timedelta(microseconds=1)
    assert prove(challenge, sign(challenge, key), at=last).verified_at == last


def test_a_text_is_good_once(challenge: WalletChallenge, key: Keypair, at: datetime) -> None:
    prove(challenge, sign(challenge, key), at=at)
    with pytest.raises(challenges.ChallengeUsed):
        prove(challenge, sign(challenge, key), at=at)
    with pytest.raises(challenges.ChallengeUsed):  # also for who read the row before it was used
        challenges._keep(challenge=challenge, signature=sign(challenge, key), way="text", by=challenge.user, at=at)
    assert PayoutMethod.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_of_two_uses_at_once_one_goes_through(challenge: WalletChallenge, key: Keypair, at: datetime) -> None:
    signature = sign(challenge, key)
    outcomes: list[str] = []

    def use(_number: int) -> None:
        try:
            prove(WalletChallenge.objects.get(pk=challenge.pk), signature, at=at)
        except challenges.ChallengeUsed:
            outcomes.append("used")
        else:
            outcomes.append("kept")

    together(4, use)
    assert sorted(outcomes) == ["kept", "used", "used", "used"]
    assert PayoutMethod.objects.count() == 1


def test_a_text_of_one_organisation_or_person_is_not_for_another(
    org: Organisation, challenge: WalletChallenge, key: Keypair, at: datetime
) -> None:
    other, signature = organisation("other"), sign(challenge, key)
    colleague = person("colleague")
    Membership.objects.create(user=colleague, organisation=org, role=Membership.Role.OWNER)
    for organisation_, by in ((other, other.created_by), (other, org.created_by), (org, colleague)):
        with pytest.raises(challenges.ChallengeUnknown):
            challenges.prove(challenge=challenge, signature=signature, organisation=organisation_, by=by, at=at)
    assert not PayoutMethod.objects.exists()


def test_who_lost_the_role_meanwhile_connects_nothing(
    org: Organisation, challenge: WalletChallenge, key: Keypair, at: datetime
) -> None:
    Membership.objects.filter(organisation=org).update(role=Membership.Role.VIEWER)
    refused(challenge, sign(challenge, key), methods.NotForThisRole, at=at)


def test_an_address_that_became_something_else_meanwhile_is_refused(
    org: Organisation, key: Keypair, challenge: WalletChallenge, at: datetime
) -> None:
    """The chain is asked again: here it does not answer, so nothing is kept and the text stays good."""
    chainkit.faults(rpc_down=True)
    refused(challenge, sign(challenge, key), challenges.ChainSilent, at=at)
    chainkit.faults(reset=True)
    assert prove(challenge, sign(challenge, key), at=at).verified_at == at


@pytest.mark.spec("H2")
@pytest.mark.case("money-F44")
@pytest.mark.parametrize(
    ("kind", "refusal"),
    [
        ("one's own token account", addresses.TokenAccountGiven),
        ("a token account not made yet", addresses.NotAWallet),
        ("the mint", addresses.MintGiven),
        ("USDC of the main network", addresses.MintGiven),
        ("the token program", addresses.ProgramGiven),
        ("the system program", addresses.ProgramGiven),
        ("the treasury", addresses.OwnAddressGiven),
        ("the treasury's token account", addresses.OwnAddressGiven),
        ("a deposit address", addresses.OwnAddressGiven),
        ("a multisig's vault", addresses.NotAWallet),
        ("a typo outside the alphabet", addresses.NotAnAddress),
        ("a letter missing", addresses.NotAnAddress),
        ("an Ethereum address", addresses.NotAnAddress),
        ("space around", addresses.NotAnAddress),
    ],
)
def test_no_text_is_made_for_an_address_that_is_no_wallet(
    org: Organisation, key: Keypair, at: datetime, kind: str, refusal: type[Exception]
) -> None:

    wallet = str(key.pubkey())
    chainkit.give(wallet, 1)
    squads = Pubkey.from_string("SQDS4ep65T869zMMBKyuUq6aD6EgTu8psMjkvj52pCf")
    vault, _bump = Pubkey.find_program_address([b"multisig", bytes(key.pubkey()), b"vault", b"\x00"], squads)
    address = {
        "one's own token account": ata(wallet, treasury.mint()),
        "a token account not made yet": ata(chainkit.wallet(), treasury.mint()),
        "the mint": treasury.mint(),
        "USDC of the main network": "EPjFWdd5AufqSSqeM2qN1xzybapC8G4wEGGkZwyTDt1v",
        "the token program": "TokenkegQfeZyiNwAJbNbGKPFXCWuBvf9Ss623VQ5DA",
        "the system program": "11111111111111111111111111111111",
        "the treasury": treasury.address(),
        "the treasury's token account": ata(treasury.address(), treasury.mint()),
        "a deposit address": deposits.address_for(org, at=at).owner,
        "a multisig's vault": str(vault),
        "a typo outside the alphabet": "0" + wallet[1:],
        "a letter missing": wallet[:-12],
        "an Ethereum address": "0x52908400098527886E0F7030069857D2E4169EE7",
        "space around": f" {wallet}",
    }[kind]
    with pytest.raises(refusal):
        challenges.issue(organisation=org, address=address, by=org.created_by, at=at)
    assert not WalletChallenge.objects.exists()


def test_an_address_never_seen_and_one_that_holds_sol_are_wallets(org: Organisation, at: datetime) -> None:
    used = Keypair()
    chainkit.give(str(used.pubkey()), 1)
    for key in (Keypair(), used):
        assert challenges.issue(organisation=org, address=str(key.pubkey()), by=org.created_by, at=at).pk


def test_a_typo_that_is_an_address_all_the_same_is_caught_by_the_signature(
    org: Organisation, key: Keypair, at: datetime
) -> None:
    """Half of all one-letter typos are addresses on the curve: nobody could sign for them, so none is ever paid to."""
    wallet = str(key.pubkey())
    for place in range(2, 40):
        typo = wallet[:place] + ("2" if wallet[place] != "2" else "3") + wallet[place + 1 :]
        try:
            challenge = challenges.issue(organisation=org, address=typo, by=org.created_by, at=at)
        except addresses.Refusal:
            continue
        refused(challenge, sign(challenge, key), challenges.SignedByAnotherKey, at=at)
        return
    pytest.fail("no typo was an address")
