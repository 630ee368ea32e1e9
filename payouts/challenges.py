"""Proof that a wallet's owner holds its key: he signs a text that we make up, which moves no money.

1. A challenge is for one organisation, one person and one address, good once and for ten minutes. Its text says all of that, names
   this site, and carries a number that nobody can guess.
2. The signature is verified over the bytes of the text as we stored it; what the browser sends back is only the signature.
3. Wallets in a browser sign the bytes themselves. ``solana sign-offchain-message`` and Ledger sign them inside an envelope, which a
   transaction can never look like: ``ff "solana offchain"``, header version 0, and then either (Ledger's app from 1.8, and the
   specification) application domain, format, signers, length, or (the command line, older Ledgers) format, length.
   https://docs.anza.xyz/proposals/off-chain-message-signing
4. The text is one line of printable ASCII shorter than 1,147 bytes, so that a Ledger shows it instead of signing blindly, and
   copying it into a terminal cannot break it.

>>> offchain(b"hello").hex(" ", 4)
'ff 736f6c61 6e61206f 66666368 61696e00 00050068 656c6c6f'
"""

import base64
import binascii
import re
import secrets
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from urllib.parse import urlsplit

from django.conf import settings
from django.db import transaction
from django.utils.translation import gettext_lazy as _
from solders.pubkey import Pubkey
from solders.signature import Signature

from billing import treasury
from gpunex.accounts.models import Organisation, User
from gpunex.chain.addresses import check_wallet
from gpunex.chain.rpc import RpcError, RpcUnavailable
from gpunex.kit.refusals import Refusal
from payouts.methods import ConnectedAlready, NotForThisRole, active_method, keep_method, may_change
from payouts.models import PayoutMethod, Rail, WalletChallenge

GOOD_FOR = timedelta(minutes=10)
SIGNATURE_BYTES = 64
SIGNING_DOMAIN = b"\xffsolana offchain"
HEADER_VERSION = b"\x00"
NO_APPLICATION = bytes(32)
RESTRICTED_ASCII, LIMITED_UTF8 = b"\x00", b"\x01"
BASE58 = re.compile(r"[1-9A-HJ-NP-Za-km-z]{64,88}")
HEX = re.compile(r"[0-9a-f]{128}|[0-9A-F]{128}")


class ChainSilent(Refusal):
    code = "chain_silent"
    message = _(
        "The Solana network did not answer, so the address could not be checked. Nothing was changed; try again in a minute."
    )


class NotASignature(Refusal):
    code = "not_a_signature"
    message = _(
        "This is not a signature. Your wallet shows one as 87 or 88 letters and digits without spaces: copy all of it."
    )


class SignedByAnotherKey(Refusal):
    code = "signed_by_another_key"
    message = _(
        "This signature does not belong to this text and this address. Sign exactly the text above, with the wallet whose address you entered."
    )


class ChallengeExpired(Refusal):
    code = "challenge_expired"
    message = _("This text was good for 10 minutes, which are over. Nothing was changed; ask for a new one.")


class ChallengeUsed(Refusal):
    code = "challenge_used"
    message = _("This text was signed and used already. To connect another wallet, begin anew.")


class ChallengeUnknown(Refusal):
    code = "challenge_unknown"
    message = _("This text was not made for you and your organisation. Begin anew with the address of your wallet.")


def check_address(text: str) -> str:
    """``text`` if it is the address of a wallet that money may go to. Raises ChainSilent, and what ``check_wallet`` refuses for."""
    try:
        # The mint is refused as what it is, not as an address of ours.
        ours = treasury.is_ours(text) and text != treasury.mint()
        return check_wallet(rpc=treasury.rpc(), text=text, own=[text] if ours else [])
    except (RpcUnavailable, RpcError) as error:
        raise ChainSilent from error


def issue(*, organisation: Organisation, address: str, by: User, at: datetime) -> WalletChallenge:
    """A text for the owner of ``address`` to sign. Raises NotForThisRole, ConnectedAlready, ChainSilent, and ``check_wallet``'s refusals."""
    if not may_change(organisation, by):
        raise NotForThisRole
    wallet = check_address(address)
    standing = active_method(organisation, at, Rail.USDC)
    if standing is not None and standing.address == wallet and standing.verified_at is not None:
        raise ConnectedAlready
    expires = at + GOOD_FOR
    return WalletChallenge.objects.create(
        organisation=organisation,
        user=by,
        address=wallet,
        message=_text(organisation, wallet, at=at, expires=expires),
        created_at=at,
        expires_at=expires,
    )


def prove(
    *, challenge: WalletChallenge, signature: str, organisation: Organisation, by: User, at: datetime
) -> PayoutMethod:
    """Keep the challenge's wallet as where payouts go, if its owner signed: at once if it is the first, else after the cool-down.

    ``signature`` is base58 as wallets show it; base64 and hex are understood too. Two uses at once: one goes through, the other
    gets ChallengeUsed. Raises NotASignature, SignedByAnotherKey, ChallengeExpired, ChallengeUsed, ChallengeUnknown,
    ChainSilent, and what ``keep_method`` and ``check_wallet`` refuse for.
    """
    if (challenge.organisation_id, challenge.user_id) != (organisation.pk, by.pk):
        raise ChallengeUnknown
    _refuse_if_over(challenge, at=at)
    way = verify(address=challenge.address, message=challenge.message, signature=signature)
    check_address(challenge.address)
    return _keep(challenge=challenge, signature=signature, way=way, by=by, at=at)


@transaction.atomic
def _keep(*, challenge: WalletChallenge, signature: str, way: str, by: User, at: datetime) -> PayoutMethod:
    organisation = Organisation.objects.select_for_update(no_key=True).get(pk=challenge.organisation_id)
    challenge = WalletChallenge.objects.select_for_update(no_key=True).get(pk=challenge.pk)
    _refuse_if_over(challenge, at=at)
    challenge.used_at = at
    challenge.save(update_fields=["used_at"])
    proof = {"message": challenge.message, "signature": str(parse_signature(signature)), "way": way}
    return keep_method(organisation=organisation, rail=Rail.USDC, address=challenge.address, proof=proof, by=by, at=at)


def _refuse_if_over(challenge: WalletChallenge, *, at: datetime) -> None:
    if challenge.used_at is not None:
        raise ChallengeUsed
    if at >= challenge.expires_at:
        raise ChallengeExpired


def _text(organisation: Organisation, address: str, *, at: datetime, expires: datetime) -> str:
    """One line of printable ASCII without a quote that ends a shell's: a name that is not is left out, the id says which one is meant."""
    name = organisation.name if re.fullmatch(r"[ !#-&(-~]{1,80}", organisation.name) else ""
    whose = f'"{name}" ({organisation.public_id})' if name else str(organisation.public_id)
    return (
        f"{urlsplit(settings.PUBLIC_URL).netloc} asks you to prove that you hold the key of the Solana wallet {address}. "
        f"Purpose: connect it to the GPUnex organisation {whose}, so that money is paid to it. "
        f"Signing this text moves no money and costs nothing. Never sign it for another site. "
        f"Issued {_moment(at)}, expires {_moment(expires)}. Nonce {secrets.token_hex(16)}."
    )


def _moment(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


# --- signatures ------------------------------------------------------------------------------------------------------


def verify(*, address: str, message: str, signature: str) -> str:
    """In which way the owner of ``address`` signed ``message``: "text", "offchain" or "offchain-signers".

    ``Signature.verify`` is the strict one: it refuses keys of small order and a scalar that is not the least of its kind, so a
    signature cannot be made into another that verifies too. Raises NotASignature, SignedByAnotherKey.
    """
    signed, key = parse_signature(signature), Pubkey.from_string(address)
    for way, data in _as_signed(message.encode("ascii"), bytes(key)):
        if signed.verify(key, data):
            return way
    raise SignedByAnotherKey


def _as_signed(message: bytes, signer: bytes) -> Iterator[tuple[str, bytes]]:
    yield "text", message
    for kind in (RESTRICTED_ASCII, LIMITED_UTF8):
        yield "offchain", offchain(message, kind=kind)
        yield "offchain-signers", offchain(message, kind=kind, signer=signer)


def offchain(message: bytes, *, kind: bytes = RESTRICTED_ASCII, signer: bytes | None = None) -> bytes:
    """The envelope of an off-chain message, in the short form, or in the one that names its ``signer`` (32 bytes)."""
    head = SIGNING_DOMAIN + HEADER_VERSION
    head += kind if signer is None else NO_APPLICATION + kind + b"\x01" + signer
    return head + len(message).to_bytes(2, "little") + message


def parse_signature(text: str) -> Signature:
    """64 bytes out of base58, or of hex or base64, which cannot be mistaken for it: their lengths differ. Raises NotASignature."""
    text = text.strip()
    try:
        if HEX.fullmatch(text):
            return Signature.from_bytes(bytes.fromhex(text))
        if BASE58.fullmatch(text):
            return Signature.from_string(text)
        raw = base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error) as error:
        raise NotASignature from error
    if len(raw) != SIGNATURE_BYTES:
        raise NotASignature
    return Signature.from_bytes(raw)
