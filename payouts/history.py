"""An organisation's payouts, each with all that it can be looked up by: transaction or bank transfer, network fee, statement."""

from collections.abc import Iterable
from dataclasses import dataclass

from billing.models import Statement
from payouts.models import BankTransfer, Payout
from payouts.usdc import explorer_link

LAMPORTS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Line:
    """``signature`` and ``link`` are empty until it is signed, or where no explorer knows the chain; ``fee_sol`` until it landed."""

    payout: Payout
    signature: str
    link: str
    fee_sol: str
    transfer: BankTransfer | None
    statement: Statement | None


def lines(payouts: Iterable[Payout]) -> list[Line]:
    """Two queries more for all of them. ``payouts`` come with their attempts and run."""
    rows = list(payouts)
    transfers = {row.payout_id: row for row in BankTransfer.objects.filter(payout__in=rows)}
    statements = {
        row.reference: row
        for row in Statement.objects.filter(
            kind=Statement.Kind.PAYOUT, reference__in=[str(row.public_id) for row in rows]
        ).only("public_id", "series", "number", "reference")
    }
    return [
        Line(
            payout=row,
            signature=attempt.signature if attempt else "",
            link=explorer_link(attempt.signature) if attempt else "",
            fee_sol=sol(attempt.fee_lamports) if attempt and attempt.fee_lamports else "",
            transfer=transfers.get(row.pk),
            statement=statements.get(str(row.public_id)),
        )
        for row in rows
        for attempt in [row.last_attempt]
    ]


def sol(lamports: int) -> str:
    """Exact, without a float.

    >>> sol(5_400), sol(1_000_000_000)
    ('0.0000054', '1')
    """
    whole, rest = divmod(lamports, LAMPORTS)
    return f"{whole}.{rest:09d}".rstrip("0").rstrip(".")
