import threading
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta

import psycopg2
from django.db import connection, connections, transaction
from django.utils import timezone

from billing import ledger, metering
from billing.ledger import Kind, Move
from billing.models import Account, Transfer
from tests.bench import rows
from tests.bench.measure import Measured, bench, lasts, median_seconds, passes, seconds_of, undone

# The same rows as a settlement writes, by a statement that funds nobody, respects no floor and asks no questions.
_BARE_SETTLEMENT = """
WITH due AS (
    SELECT m.*, 3600 AS seconds, m.rate_micro_per_hour AS gross, m.rate_micro_per_hour / 10 AS fee,
           b.id AS payer_account, p.id AS payee_account
    FROM billing_meter m
    JOIN billing_account b ON b.kind = 'renter.balance' AND b.organisation_id = m.payer_id
    JOIN billing_account p ON p.kind = 'provider.payable' AND p.organisation_id = m.payee_id
    WHERE NOT m.closed
), posted AS (
    INSERT INTO billing_transfer (key, debit_id, credit_id, amount_micro, kind, reference, effective_at, created_at, reason, data)
    SELECT 'bare:' || public_id || part.name, payer_account, part.account, part.amount, part.kind, public_id::text, now(), now(), '',
           jsonb_build_object('from', 0, 'to', seconds, 'rate_micro_per_hour', rate_micro_per_hour)
    FROM due, LATERAL (VALUES ('net', payee_account, 'charge', gross - fee), ('fee', %(fee)s, 'fee', fee)) AS part (name, account, kind, amount)
    RETURNING debit_id, credit_id, amount_micro
), moved AS (
    SELECT account, sum(amount) AS amount FROM (
        SELECT debit_id AS account, -amount_micro AS amount FROM posted UNION ALL SELECT credit_id, amount_micro FROM posted
    ) AS sides GROUP BY account
), balances AS (
    UPDATE billing_account a SET balance_micro = a.balance_micro + moved.amount FROM moved WHERE a.id = moved.account AND a.materialised
)
UPDATE billing_meter m SET billed_seconds = due.seconds, billed_gross_micro = due.gross, billed_fee_micro = due.fee FROM due WHERE m.id = due.id
"""


@bench("money")
def settlement(*, meters: int = 10_000, payers: int = 1000) -> Iterator[Measured]:
    """All running meters of all payers, an hour after their start."""
    start = timezone.now().replace(hour=12, minute=0, second=0, microsecond=0) - timedelta(days=1)
    until = start + timedelta(hours=1)
    renters, houses = rows.organisations(payers, at=start), rows.organisations(max(1, payers // 10), at=start)
    balances = rows.accounts(renters, Kind.RENTER_BALANCE)
    rows.accounts(houses, Kind.PROVIDER_PAYABLE)
    fee = ledger.account(Kind.FEE)
    rows.fund(balances, 1_000_000 * rows.USDC, at=start)
    rows.meters(meters, payers=renters, payees=houses, start=start, until=until)
    _analyse()

    def bare() -> None:
        with connection.cursor() as cursor:
            cursor.execute(_BARE_SETTLEMENT, {"fee": fee.pk})

    with undone():
        bare()  # warms the caches for both
    with undone():
        alone = seconds_of(bare)
    before = Transfer.objects.count()
    ours = seconds_of(lambda: metering.settle(at=until))
    assert Transfer.objects.count() == before + 2 * meters, "every meter was billed, and its fee"
    assert ledger.verify_books().drift_micro == 0
    yield lasts(
        f"settle {meters} meters", ours, peer="one SQL statement with the same inserts", peer_seconds=alone, at_most=4
    )


@bench("money")
def postings(*, threads: int = 8, each: int = 150) -> Iterator[Measured]:
    """Single transfers from many renters at once, each committed by itself."""
    at = timezone.now()
    sources = rows.accounts(rows.organisations(threads, at=at), Kind.RENTER_BALANCE)
    targets = rows.accounts(rows.organisations(threads, at=at), Kind.PROVIDER_PAYABLE)
    rows.fund(sources, 1_000_000 * rows.USDC, at=at)
    dsn = connection.get_connection_params()
    options = {name: value for name, value in dsn.items() if name in {"dbname", "user", "password", "host", "port"}}

    def post(number: int) -> None:
        for _ in range(each):
            key = f"bench:{uuid.uuid4()}"
            ledger.post(
                key=key, debit=sources[number], credit=targets[number], amount_micro=7, kind=Move.ADJUSTMENT, at=at
            )
        connections.close_all()

    def bare(number: int) -> None:
        link = psycopg2.connect(**options)
        with link.cursor() as cursor:
            for _ in range(each):
                cursor.execute(
                    "INSERT INTO billing_transfer (key, debit_id, credit_id, amount_micro, kind, reference, effective_at, created_at, reason, data)"
                    " VALUES (%s, %s, %s, 7, 'adjustment', '', now(), now(), '', '{}')",
                    [f"bare:{uuid.uuid4()}", sources[number].pk, targets[number].pk],
                )
                for account, amount in sorted([(sources[number].pk, -7), (targets[number].pk, 7)]):
                    cursor.execute(
                        "UPDATE billing_account SET balance_micro = balance_micro + %s WHERE id = %s", [amount, account]
                    )
                link.commit()
        link.close()

    alone, ours = _together(bare, threads), _together(post, threads)
    assert ledger.verify_books().drift_micro == 0
    yield passes(
        f"postings, {threads} threads",
        threads * each / ours,
        "1/s",
        peer="insert and two updates by psycopg2",
        peer_a_second=threads * each / alone,
        at_least=0.1,
    )


@bench("money")
def verification(*, transfers: int = 100_000) -> Iterator[Measured]:
    """The proof of the books over many transfers."""
    at = timezone.now()
    sources = rows.accounts(rows.organisations(500, at=at), Kind.RENTER_BALANCE)
    rows.fund(sources, 1_000_000 * rows.USDC, at=at)
    adjustments = ledger.account(Kind.ADJUSTMENTS)
    first, count = sources[0].pk, len(sources)
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO billing_transfer (key, debit_id, credit_id, amount_micro, kind, reference, effective_at, created_at, reason, data)"
            " SELECT 'many:' || gen_random_uuid(), %s + n %% %s, %s, 1 + n %% 97, 'adjustment', '', now(), now(), '', '{}'"
            " FROM generate_series(1, %s) n",
            [first, count, adjustments.pk, transfers],
        )
        cursor.execute(
            "UPDATE billing_account a SET balance_micro = (SELECT coalesce(sum(amount_micro), 0) FROM billing_transfer WHERE credit_id = a.id)"
            " - (SELECT coalesce(sum(amount_micro), 0) FROM billing_transfer WHERE debit_id = a.id) WHERE id = ANY(%s)",
            [[account.pk for account in sources]],
        )
    _analyse()

    def bare() -> None:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT account, sum(amount) FROM (SELECT credit_id AS account, amount_micro AS amount FROM billing_transfer"
                " UNION ALL SELECT debit_id, -amount_micro FROM billing_transfer) AS sides GROUP BY account"
            )
            cursor.fetchall()

    alone = median_seconds(bare, times=3)
    ours = median_seconds(_prove, times=3)
    yield lasts(
        f"verify_books, {Transfer.objects.count()} transfers",
        ours,
        peer="one sum over all transfers",
        peer_seconds=alone,
        at_most=8,
    )


def _prove() -> None:
    assert ledger.verify_books().drift_micro == 0


def _analyse() -> None:
    with connection.cursor() as cursor:
        for table in (Account, Transfer):
            cursor.execute(f"ANALYZE {table._meta.db_table}")
        cursor.execute("ANALYZE billing_meter")


def _together(act: Callable[[int], None], threads: int) -> float:
    """Seconds until all threads have done their part."""
    failures: list[BaseException] = []

    def run(number: int) -> None:
        try:
            act(number)
        except BaseException as error:
            failures.append(error)

    workers = [threading.Thread(target=run, args=(number,)) for number in range(threads)]
    begun = time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if failures:
        raise failures[0]
    return time.perf_counter() - begun
