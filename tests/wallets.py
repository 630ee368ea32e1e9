"""Wallets as their owners use them: a key signs the text that proves it."""

from datetime import datetime

from solders.keypair import Keypair

from gpunex.accounts.models import Organisation, User
from payouts import challenges
from payouts.models import PayoutMethod, WalletChallenge


def sign(challenge: WalletChallenge, key: Keypair) -> str:
    """The signature in base58, as a wallet in the browser makes it."""
    return str(key.sign_message(challenge.message.encode()))


def connect_wallet(
    organisation: Organisation, *, at: datetime, key: Keypair | None = None, by: User | None = None
) -> PayoutMethod:
    """Prove and connect the wallet of ``key``, of a new key by default; ``by`` the organisation's maker by default."""
    key, by = key or Keypair(), by or organisation.created_by
    challenge = challenges.issue(organisation=organisation, address=str(key.pubkey()), by=by, at=at)
    return challenges.prove(
        challenge=challenge, signature=sign(challenge, key), organisation=organisation, by=by, at=at
    )
