"""The proof of the books: from independent sources, in one pass over the transfers, as of one moment.

What is proved
1. No account is below its floor.
2. Each materialised balance (kept on the account's row) is the sum of its transfers.
3. Those balances and the sums of the other accounts come to zero together.
4. Each transfer is of a kind that may move between its two accounts.
5. Each meter's bill (kept on the meter) is the sum of its charges and fees, and they went from its payer to its payee.
6. What each meter says was given back of it is what credits, refunds and reversals gave back, and never more than its bill.
7. Per provider: Σ net charges (by the meters) − credits, refunds and recovered debts ± adjustments and reversals
   = payable + in transit (by the accounts' rows) + paid − returned (by the payouts' transfers).
8. Per renter: deposits + credits + refunds ± adjustments and reversals − Σ charges (by the meters)
   = balance + on its way back (by the accounts' rows) + given back − returned.
9. Each debt is what a credit left uncovered, no credit left anything uncovered without one, and what was recovered and written off of
   it are its transfers. So the balance of ``platform.credits`` is explained: given, covered, recovered and written off.

The transfers are read once and added up by accounts, kind and reference (``flows``); every check works on these sums. The chain's and
the payouts' side is proved where payouts are known (``payouts.books``).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from django.db import connection, transaction


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that must hold: its figure for people, and each place where it does not, with by how much."""

    name: str
    figure: str
    off: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Report:
    """What the books prove. ``drift_micro`` is 0 exactly if nothing is off: the most that any one check misses."""

    checks: list[Check]

    @property
    def drift_micro(self) -> int:
        # One wrong amount shows in several checks: adding them up would count it several times.
        return max((sum(map(abs, check.off.values())) for check in self.checks), default=0)

    @property
    def problems(self) -> list[str]:
        return [
            f"{check.name}: {place} is off by {micro} micro-USDC"
            for check in self.checks
            for place, micro in check.off.items()
        ]


@contextmanager
def one_moment() -> Iterator[None]:
    """All that is read inside is as of one moment, while money goes on moving."""
    nested = connection.in_atomic_block
    with transaction.atomic():
        if not nested:
            connection.cursor().execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        yield


def verify_books() -> Report:
    """Prove the ledger by itself."""
    with one_moment(), connection.cursor() as cursor:
        # Added up in memory where it fits; on disk it is several times slower.
        cursor.execute("SELECT set_config('work_mem', '256MB', true)")
        cursor.execute(_PROOF)
        rows = cursor.fetchall()
    figures = {name: str(figure) for kind, name, figure, _micro in rows if kind == "figure"}
    off: dict[str, dict[str, int]] = {name: {} for name, _figure in _CHECKS.values()}
    for kind, check, place, micro in rows:
        if kind == "off":
            off[_CHECKS[check][0]][place] = int(micro)
    return Report([Check(name, f"{figures[of]} {of}", off[name]) for name, of in _CHECKS.values()])


# The checks in their order: the name for people, and what its figure counts.
_CHECKS = {
    "floor": ("no account is below its floor", "accounts"),
    "balance": ("each balance is the sum of its transfers", "transfers"),
    "zero": ("the whole sums to zero", "transfers"),
    "kind": ("each transfer is of a kind that may move between its accounts", "transfers"),
    "bill": ("each meter's bill is the sum of its charges", "meters"),
    "refund": ("what was given back of each meter is its credits and refunds, within its bill", "meters"),
    "provider": ("each provider's earnings are payable, in transit or paid", "providers"),
    "renter": ("each renter's money is on the balance, used or given back", "renters"),
    "debt": ("each debt is what a credit left open", "debts"),
}

# Which accounts each kind of transfer may move between; what people correct by hand may be anything.
_ALLOWED = """
    ('deposit', 'chain.treasury', 'renter.balance'), ('unmatched', 'chain.treasury', 'deposits.unmatched'),
    ('match', 'deposits.unmatched', 'renter.balance'), ('charge', 'renter.balance', 'provider.payable'),
    ('fee', 'renter.balance', 'platform.fee'), ('credit', 'platform.credits', 'renter.balance'),
    ('credit', 'provider.payable', 'platform.credits'), ('recovery', 'provider.payable', 'platform.credits'),
    ('write_off', 'platform.loss', 'platform.credits'), ('refund', 'provider.payable', 'renter.balance'),
    ('refund', 'platform.credits', 'renter.balance'), ('payout', 'provider.payable', 'payout.in_transit'),
    ('payout', 'renter.balance', 'payout.in_transit'), ('payout_paid', 'payout.in_transit', 'payout.paid.chain'),
    ('payout_paid', 'payout.in_transit', 'payout.paid.bank'), ('payout_back', 'payout.in_transit', 'provider.payable'),
    ('payout_back', 'payout.in_transit', 'renter.balance'), ('payout_returned', 'payout.paid.bank', 'provider.payable'),
    ('payout_returned', 'payout.paid.bank', 'renter.balance')"""

_PROOF = f"""
WITH flows AS MATERIALIZED (
    SELECT debit_id, credit_id, kind, reference, count(*) AS transfers, sum(amount_micro)::bigint AS micro
    FROM billing_transfer GROUP BY debit_id, credit_id, kind, reference
), sums AS MATERIALIZED (
    SELECT account, sum(micro)::bigint AS micro FROM (
        SELECT credit_id AS account, micro FROM flows UNION ALL SELECT debit_id, -micro FROM flows
    ) AS sides GROUP BY account
), pairs AS MATERIALIZED (  -- without the references: few rows
    SELECT f.debit_id, f.credit_id, f.kind, sum(f.micro)::bigint AS micro FROM flows f GROUP BY 1, 2, 3
), known AS MATERIALIZED (
    SELECT p.kind, p.micro, p.debit_id, p.credit_id, d.kind AS debit_kind, c.kind AS credit_kind, d.code AS debit, c.code AS credit,
           d.organisation_id AS payer_id, c.organisation_id AS payee_id
    FROM pairs p JOIN billing_account d ON d.id = p.debit_id JOIN billing_account c ON c.id = p.credit_id
), undone AS MATERIALIZED (  -- reversals are few, and found by their own index
    SELECT o.kind, o.reference, r.amount_micro AS micro
    FROM billing_transfer r JOIN billing_transfer o ON o.id = r.reverses_id WHERE r.reverses_id IS NOT NULL
), charged AS (
    SELECT f.reference, sum(f.micro) FILTER (WHERE f.kind = 'charge') AS net, sum(f.micro) FILTER (WHERE f.kind = 'fee') AS fee,
           min(d.organisation_id) AS payer_id, max(d.organisation_id) AS payer_too,
           min(c.organisation_id) AS payee_id, max(c.organisation_id) AS payee_too
    FROM flows f JOIN billing_account d ON d.id = f.debit_id JOIN billing_account c ON c.id = f.credit_id
    WHERE f.kind IN ('charge', 'fee') GROUP BY f.reference
), given AS MATERIALIZED (  -- back to renters: a credit names the rental, everything else the meter itself
    SELECT reference, sum(credit)::bigint AS credit, sum(covered)::bigint AS covered, sum(refund)::bigint AS refund FROM (
        SELECT f.reference, CASE WHEN f.kind = 'credit' AND f.debit_id = p.id THEN f.micro ELSE 0 END AS credit,
               CASE WHEN f.kind = 'credit' AND f.credit_id = p.id THEN f.micro ELSE 0 END AS covered,
               CASE WHEN f.kind = 'refund' THEN f.micro ELSE 0 END AS refund
        FROM flows f LEFT JOIN billing_account p ON p.code = 'platform.credits' WHERE f.kind IN ('credit', 'refund')
        UNION ALL SELECT reference, 0, 0, micro FROM undone WHERE kind IN ('charge', 'fee')
        UNION ALL SELECT reference, 0, 0, -micro FROM undone WHERE kind = 'refund'
    ) AS parts GROUP BY reference
), transits AS MATERIALIZED (  -- whose money is on its way: earnings, or unused balance that goes back
    SELECT k.credit_id AS id, min(k.debit_kind) AS source, min(k.payer_id) AS organisation_id
    FROM known k WHERE k.kind = 'payout' AND k.credit_kind = 'payout.in_transit' GROUP BY k.credit_id
), held AS (
    SELECT coalesce(t.organisation_id, a.organisation_id) AS organisation_id,
           coalesce(t.source, a.kind) AS source, sum(a.balance_micro) AS micro
    FROM billing_account a LEFT JOIN transits t ON t.id = a.id
    WHERE a.kind IN ('provider.payable', 'renter.balance', 'payout.in_transit') GROUP BY 1, 2
), gone AS (  -- paid − returned
    SELECT organisation_id, source, sum(micro) AS micro FROM (
        SELECT t.organisation_id, t.source, k.micro FROM known k JOIN transits t ON t.id = k.debit_id WHERE k.kind = 'payout_paid'
        UNION ALL SELECT payee_id, credit_kind, -micro FROM known WHERE kind = 'payout_returned'
    ) AS parts GROUP BY 1, 2
), metered AS (
    SELECT payee_id AS organisation_id, 'provider.payable' AS source, sum(billed_gross_micro - billed_fee_micro) AS micro
    FROM billing_meter GROUP BY 1
    UNION ALL SELECT payer_id, 'renter.balance', -sum(billed_gross_micro) FROM billing_meter GROUP BY 1
), corrected AS (  -- all that is neither a charge nor a payout's
    SELECT organisation_id, source, sum(micro) AS micro FROM (
        SELECT payee_id AS organisation_id, credit_kind AS source, micro FROM known
        WHERE credit_kind IN ('provider.payable', 'renter.balance') AND kind NOT IN ('charge', 'fee', 'payout_back', 'payout_returned')
        UNION ALL SELECT payer_id, debit_kind, -micro FROM known
        WHERE debit_kind IN ('provider.payable', 'renter.balance') AND kind NOT IN ('charge', 'fee', 'payout')
    ) AS sides GROUP BY 1, 2
), identity AS (
    SELECT organisation_id, source, sum(micro) AS micro FROM (
        SELECT organisation_id, source, micro FROM held UNION ALL SELECT organisation_id, source, micro FROM gone
        UNION ALL SELECT organisation_id, source, -micro FROM metered UNION ALL SELECT organisation_id, source, -micro FROM corrected
    ) AS sides GROUP BY 1, 2 HAVING sum(micro) <> 0
), settled AS (  -- what became of each debt, by its transfers
    SELECT reference, sum(micro) FILTER (WHERE kind = 'recovery') AS recovered, sum(micro) FILTER (WHERE kind = 'write_off') AS written_off
    FROM flows WHERE kind IN ('recovery', 'write_off') GROUP BY reference
)
SELECT 'figure' AS row, 'accounts' AS name, count(*)::text AS place, 0::numeric AS micro FROM billing_account
UNION ALL SELECT 'figure', 'transfers', coalesce(sum(transfers), 0)::text, 0 FROM flows
UNION ALL SELECT 'figure', 'meters', count(*)::text, 0 FROM billing_meter
UNION ALL SELECT 'figure', 'providers', count(*)::text, 0 FROM billing_account WHERE kind = 'provider.payable'
UNION ALL SELECT 'figure', 'renters', count(*)::text, 0 FROM billing_account WHERE kind = 'renter.balance'
UNION ALL SELECT 'figure', 'debts', count(*)::text, 0 FROM billing_providerdebt
UNION ALL SELECT 'off', 'floor', code, balance_micro - floor_micro FROM billing_account WHERE balance_micro < floor_micro
UNION ALL SELECT 'off', 'balance', a.code, a.balance_micro - coalesce(s.micro, 0) FROM billing_account a
    LEFT JOIN sums s ON s.account = a.id WHERE a.materialised AND a.balance_micro <> coalesce(s.micro, 0)
UNION ALL SELECT 'off', 'zero', 'all accounts', micro FROM (
    SELECT sum(CASE WHEN a.materialised THEN a.balance_micro ELSE coalesce(s.micro, 0) END) AS micro
    FROM billing_account a LEFT JOIN sums s ON s.account = a.id
) AS whole WHERE micro <> 0
UNION ALL SELECT 'off', 'kind', k.kind || ' from ' || k.debit || ' to ' || k.credit, k.micro FROM known k
    LEFT JOIN (VALUES {_ALLOWED}) AS allowed (kind, debit, credit)
    ON allowed.kind = k.kind AND allowed.debit = k.debit_kind AND allowed.credit = k.credit_kind
    WHERE k.kind NOT IN ('adjustment', 'reversal') AND (
        allowed.kind IS NULL OR k.kind IN ('payout', 'payout_back') AND k.payer_id IS DISTINCT FROM k.payee_id
    )
UNION ALL SELECT 'off', 'bill', 'meter ' || coalesce(m.public_id::text, c.reference),
        greatest(1, abs(coalesce(m.billed_gross_micro - m.billed_fee_micro, 0) - coalesce(c.net, 0))
                    + abs(coalesce(m.billed_fee_micro, 0) - coalesce(c.fee, 0)))
    FROM billing_meter m FULL JOIN charged c ON c.reference = m.public_id::text
    WHERE coalesce(m.billed_gross_micro - m.billed_fee_micro, 0) <> coalesce(c.net, 0)
       OR coalesce(m.billed_fee_micro, 0) <> coalesce(c.fee, 0)
       OR c.payer_id <> m.payer_id OR c.payer_too <> m.payer_id OR c.payee_id <> m.payee_id OR c.payee_too <> m.payee_id
UNION ALL SELECT 'off', 'refund', 'meter ' || m.public_id, greatest(
        abs(m.refunded_micro - coalesce(c.credit, 0) - coalesce(r.refund, 0)), m.refunded_micro - m.billed_gross_micro)
    FROM billing_meter m LEFT JOIN given c ON c.reference = m.reference LEFT JOIN given r ON r.reference = m.public_id::text
    WHERE m.refunded_micro <> coalesce(c.credit, 0) + coalesce(r.refund, 0) OR m.refunded_micro > m.billed_gross_micro
UNION ALL SELECT 'off', CASE source WHEN 'provider.payable' THEN 'provider' ELSE 'renter' END,
        coalesce('organisation ' || o.public_id, 'nobody'), i.micro
    FROM identity i LEFT JOIN accounts_organisation o ON o.id = i.organisation_id
UNION ALL SELECT 'off', 'debt', 'debt ' || coalesce(d.public_id::text, s.reference), greatest(1,
        abs(coalesce(d.recovered_micro, 0) - coalesce(s.recovered, 0)) + abs(coalesce(s.written_off, 0)
            - CASE WHEN d.state = 'written_off' THEN d.amount_micro - d.recovered_micro ELSE 0 END)
        + abs(coalesce(g.credit - g.covered - d.amount_micro, 0)))
    FROM billing_providerdebt d FULL JOIN settled s ON s.reference = d.public_id::text LEFT JOIN given g ON g.reference = d.reference
    WHERE d.id IS NULL OR d.recovered_micro <> coalesce(s.recovered, 0)
       OR coalesce(s.written_off, 0) <> CASE WHEN d.state = 'written_off' THEN d.amount_micro - d.recovered_micro ELSE 0 END
       OR d.state = 'recovered' AND d.recovered_micro <> d.amount_micro
       OR g.credit - g.covered <> d.amount_micro
UNION ALL SELECT 'off', 'debt', 'credit of ' || g.reference, g.credit - g.covered
    FROM given g LEFT JOIN billing_providerdebt d ON d.reference = g.reference WHERE d.id IS NULL AND g.credit > g.covered
"""  # noqa: S608
