"""A run of payouts on the development chain, from the moment it is made until the last one is paid."""

import time
import uuid
from collections.abc import Iterator, Sequence
from datetime import timedelta

from django.conf import settings
from django.utils import timezone
from solders.keypair import Keypair

from billing import deposits, ledger, treasury
from billing.ledger import Kind, Move, Posting
from billing.models import Account
from gpunex.chain import faucet
from gpunex.chain.transfers import load_key, sign_transfer
from gpunex.policy.models import Policy
from payouts import periods, runs, usdc
from payouts.books import verify_books
from payouts.models import Cadence, Payout, PayoutMethod, PayoutRun, Rail
from tests.bench import rows
from tests.bench.measure import Measured, bench, lasts, seconds_of

EARNED = 30 * rows.USDC
SECONDS_MOST = 60


@bench("money")
def payouts(*, payouts: int = 500) -> Iterator[Measured]:
    """Beside it the same transfers, sent by a loop that keeps nothing, locks nothing and asks one node once."""
    faucet.give_sol(treasury.rpc(), treasury.address(), 50_000_000_000)
    at = timezone.now()
    cut_off = periods.next_period_end(Cadence.WEEKLY, at - timedelta(days=7))
    _earners(payouts, cut_off=cut_off)
    alone = seconds_of(lambda: _bare([str(Keypair().pubkey()) for _ in range(payouts)]))
    Policy.load()
    Policy.objects.update(run_cap_micro=10 * payouts * EARNED)
    begun = time.perf_counter()
    made = runs.make_due(at=at)
    making = time.perf_counter() - begun
    assert made == payouts
    while Payout.objects.exclude(state=Payout.State.PAID).exists():
        usdc.advance(at=timezone.now())
    whole = time.perf_counter() - begun
    assert not verify_books().drift_micro, "the books are proved, against the chain too"
    assert PayoutRun.objects.get().cleared_at is not None
    yield lasts(
        f"a run of {payouts} payouts, made to paid",
        whole,
        peer="the same transfers by a bare loop",
        peer_seconds=alone,
        at_most=25,
    )
    yield Measured(
        f"a run of {payouts} payouts, in seconds",
        float(f"{whole:.4g}"),
        "s",
        "of them to make the run: statements, money set aside",
        float(f"{making:.4g}"),
        float(f"{whole / making:.4g}"),
        f"value <= {SECONDS_MOST}",
        whole <= SECONDS_MOST,
    )


def _earners(count: int, *, cut_off: object) -> None:
    """Providers with a wallet and thirty earned before the cut-off, and that money in the treasury on chain."""
    before = cut_off - timedelta(days=1)  # type: ignore[operator]
    _give(treasury.address(), count * EARNED)
    deposits.find_deposits(at=before)
    organisations = rows.organisations(count, at=before)
    accounts = rows.accounts(organisations, Kind.PROVIDER_PAYABLE)
    Account.objects.filter(pk__in=[account.pk for account in accounts]).update(created_at=before)
    PayoutMethod.objects.bulk_create(
        PayoutMethod(
            organisation=organisation,
            rail=Rail.USDC,
            address=str(Keypair().pubkey()),
            created_by=organisation.created_by,
            created_at=before,
            verified_at=before,
            active_from=before,
        )
        for organisation in organisations
    )
    unmatched = ledger.account(Kind.UNMATCHED)
    ledger.post_all(
        [Posting(str(uuid.uuid4()), unmatched, account, EARNED, Move.ADJUSTMENT) for account in accounts], at=before
    )


def _give(wallet: str, micro: int) -> None:
    faucet.give(treasury.rpc(), load_key(settings.FAUCET_KEY_FILE), treasury.mint(), wallet, micro)


def _bare(wallets: Sequence[str]) -> None:
    """Sign, send, and ask for the statuses until all of them are final: from a purse of its own."""
    rpc, mint, key = treasury.rpc(), treasury.mint(), Keypair()
    faucet.give_sol(rpc, str(key.pubkey()), 50_000_000_000)
    _give(str(key.pubkey()), len(wallets) * EARNED)
    blockhash, last = rpc.get_latest_blockhash()
    signatures = []
    for wallet in wallets:
        signed = sign_transfer(
            key=key,
            mint=mint,
            destination_owner=wallet,
            amount_micro=EARNED,
            memo=uuid.uuid4().hex,
            blockhash=blockhash,
            last_valid_block_height=last,
            cu_price_micro_lamports=1_000,
        )
        signatures.append(rpc.send_raw(signed.raw, preflight=False))
    while None in rpc.get_signature_statuses(signatures):
        pass
