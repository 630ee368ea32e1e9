import os
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from importlib.metadata import version as _version
from pathlib import Path
from typing import Any

import psycopg2
from django.db import connection, connections, transaction
from django.utils import timezone

from billing import ledger, metering
from billing.ledger import Kind, Move
from billing.models import Account, Transfer
from tests.bench import rows
from tests.bench.measure import Measured, bench, lasts, median_seconds, passes, seconds_of, undone

HORDAK = "django-hordak==2.0.0"

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
    rows.meters(meters, payers=renters, payees=houses, start=start, until=until)
    for renter, balance in zip(renters, balances, strict=True):
        # As a deposit comes in: it sets until when the running meters are funded.
        metering.move_and_fund(organisation=renter, postings=[_deposit(balance)], at=start)
    _analyse()

    def bare() -> None:
        with connection.cursor() as cursor:
            cursor.execute(_BARE_SETTLEMENT, {"fee": fee.pk})

    def settle() -> None:
        assert metering.settle(at=until) == payers

    with undone():
        bare()  # warms the caches for both
    alone, ours = [], []
    for _ in range(3):
        with undone():
            alone.append(seconds_of(bare))
        with undone():
            ours.append(seconds_of(settle))
    before = Transfer.objects.count()
    settle()
    assert Transfer.objects.count() == before + 2 * meters, "every meter was billed, and its fee"
    assert ledger.verify_books().problems == []
    yield passes(
        f"settle {meters} meters of {payers} payers",
        meters / min(ours),
        "meters/s",
        peer="one SQL statement with the same inserts",
        peer_a_second=meters / min(alone),
        at_least=0.4,  # at most 2.5 times its time
        floor=3000,
    )


def _deposit(balance: Account) -> ledger.Posting:
    return ledger.Posting(
        key=f"deposit:{uuid.uuid4()}",
        debit=ledger.account(Kind.TREASURY),
        credit=balance,
        amount_micro=1_000_000 * rows.USDC,
        kind=Move.DEPOSIT,
    )


@bench("money")
def postings(*, threads: int = 8, each: int = 250) -> Iterator[Measured]:
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
    assert ledger.verify_books().problems == []
    yield passes(
        f"postings, {threads} clients",
        threads * each / ours,
        "1/s",
        peer="insert and two updates by psycopg2",
        peer_a_second=threads * each / alone,
        at_least=0.1,
        floor=200,
    )
    plain, looking = _hordak(threads=threads, each=each)
    again = threads * each / _together(post, threads)  # next to the peer, not minutes before it
    yield passes(
        f"postings, {threads} clients, as django-hordak with the same promise",
        again,
        "1/s",
        peer=f"{HORDAK}, a transfer after looking at the locked account's balance",
        peer_a_second=looking,
        at_least=3,
        floor=200,
    )
    yield passes(
        f"postings, {threads} clients, as django-hordak without keys and floors",
        again,
        "1/s",
        peer=f"{HORDAK}, a transfer alone: no key, no floor",
        peer_a_second=plain,
        at_least=1,
    )


def _hordak(*, threads: int, each: int) -> tuple[float | None, float | None]:
    """Transfers a second of the peer, alone and with a look at the balance; None where the package index cannot be reached."""
    uv = _uv()
    params = connection.get_connection_params()
    name = f"hordak_{uuid.uuid4().hex[:8]}"
    with tempfile.TemporaryDirectory() as folder:
        python = Path(folder) / "bin" / "python"
        try:
            subprocess.run([uv, "venv", "--quiet", folder], timeout=120, check=True, capture_output=True)
            packages = [HORDAK, f"django=={_version('django')}", f"psycopg2-binary=={_version('psycopg2-binary')}"]
            subprocess.run(
                [uv, "pip", "install", "--quiet", "--python", str(python), *packages],
                timeout=300,
                check=True,
                capture_output=True,
            )
        except (OSError, subprocess.SubprocessError) as error:
            sys.stderr.write(f"{HORDAK} could not be installed: {getattr(error, 'stderr', '') or error}\n")
            return None, None
        with _own_connection() as link, link.cursor() as cursor:
            cursor.execute(f'CREATE DATABASE "{name}"')
        try:
            values = [name, *(str(params.get(key) or "") for key in ("host", "port", "user", "password"))]
            script = str(Path(__file__).with_name("hordak_peer.py"))
            command = [str(python), "-I", script, *values, str(threads), str(each)]
            path = {"PATH": os.environ["PATH"]}
            done = subprocess.run(command, timeout=600, env=path, check=True, capture_output=True, text=True)
        finally:
            with _own_connection() as link, link.cursor() as cursor:
                cursor.execute(f'DROP DATABASE "{name}" WITH (FORCE)')
    plain, looking = map(float, done.stdout.split())
    return plain, looking


def _uv() -> str:
    own = Path(__file__).resolve().parents[2] / ".gpunex" / "uv" / "bin" / "uv"
    return str(own) if own.exists() else "uv"


@contextmanager
def _own_connection() -> Iterator[Any]:
    """To our database, for statements that run in no transaction."""
    params = connection.get_connection_params()
    link = psycopg2.connect(
        **{name: params[name] for name in ("dbname", "user", "password", "host", "port") if name in params}
    )
    link.autocommit = True
    try:
        yield link
    finally:
        link.close()


@bench("money")
def verification(*, transfers: int = 1_000_000) -> Iterator[Measured]:
    """The proof of the books of a year: meters of 24 charges and fees each, and deposits."""
    at = timezone.now()
    _fill_books(transfers, at=at)
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
    count = Transfer.objects.count()
    yield lasts(
        f"verify_books, {count} transfers",
        ours,
        peer="one sum over all transfers",
        peer_seconds=alone,
        at_most=10,
        within=20 * max(1, count / 1_000_000),
    )


def _fill_books(transfers: int, *, at: datetime) -> None:
    """Books that hold, as settling hour by hour would have left them, written by SQL."""
    count = min(1000, max(1, transfers // 100))  # fewer than there are deposits
    renters, houses = rows.organisations(count, at=at), rows.organisations(max(1, count // 10), at=at)
    balances = rows.accounts(renters, Kind.RENTER_BALANCE)
    earnings = rows.accounts(houses, Kind.PROVIDER_PAYABLE)
    treasury, fee = ledger.account(Kind.TREASURY), ledger.account(Kind.FEE)
    start = at - timedelta(days=2)
    meters = rows.meters(max(1, transfers // 50), payers=renters, payees=houses, start=start, until=at)
    values: dict[str, Any] = {
        "first": meters[0].pk,
        "treasury": treasury.pk,
        "fee": fee.pk,
        "deposits": transfers - 48 * len(meters),
        "balances": [account.pk for account in balances],
        "accounts": [account.pk for account in [*balances, *earnings]],
    }
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO billing_transfer (key, debit_id, credit_id, amount_micro, kind, reference, effective_at, created_at, reason, data)"
            " SELECT 'many:' || n, %(treasury)s, (%(balances)s::bigint[])[1 + n %% cardinality(%(balances)s::bigint[])], 100000000000,"
            " 'deposit', 'tx' || n, now(), now(), '', '{}' FROM generate_series(1, %(deposits)s) n",
            values,
        )
        cursor.execute(
            "INSERT INTO billing_transfer (key, debit_id, credit_id, amount_micro, kind, reference, effective_at, created_at, reason, data)"
            " SELECT 'meter:' || m.public_id || ':' || h * 3600 || ':' || part.name, b.id, part.account, part.amount, part.kind,"
            " m.public_id::text, m.started_at + h * interval '1 hour', now(), '', jsonb_build_object('from', (h - 1) * 3600, 'to', h * 3600)"
            " FROM billing_meter m JOIN billing_account b ON b.kind = 'renter.balance' AND b.organisation_id = m.payer_id"
            " JOIN billing_account p ON p.kind = 'provider.payable' AND p.organisation_id = m.payee_id, generate_series(1, 24) h,"
            " LATERAL (SELECT m.rate_micro_per_hour AS gross, m.rate_micro_per_hour * h / 10 - m.rate_micro_per_hour * (h - 1) / 10 AS fee) x,"
            " LATERAL (VALUES ('net', p.id, 'charge', x.gross - x.fee), ('fee', %(fee)s, 'fee', x.fee)) AS part (name, account, kind, amount)"
            " WHERE m.id >= %(first)s",
            values,
        )
        cursor.execute(
            "UPDATE billing_meter SET billed_seconds = 86400, billed_gross_micro = rate_micro_per_hour * 24,"
            " billed_fee_micro = rate_micro_per_hour * 24 / 10, closed = true, ended_at = started_at + interval '1 day' WHERE id >= %(first)s",
            values,
        )
        cursor.execute(
            "UPDATE billing_account a SET balance_micro = s.micro FROM ("
            " SELECT account, sum(micro) AS micro FROM (SELECT credit_id AS account, amount_micro AS micro FROM billing_transfer"
            " UNION ALL SELECT debit_id, -amount_micro FROM billing_transfer) sides GROUP BY account"
            ") s WHERE s.account = a.id AND a.id = ANY(%(accounts)s)",
            values,
        )


def _prove() -> None:
    assert ledger.verify_books().problems == []


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
