"""Proving a statement that was issued: against its own hash, against the one before it, and against the ledger.

Everything is derived again from the transfers; nothing that the statement says is taken for granted but which transfers it covers, and
those follow each other from statement to statement. A fault is said in plain words, for whoever runs the platform.
"""

from typing import Any

from billing import statement_lines
from billing.ledger import Kind, Move
from billing.models import Account, Statement, Transfer
from billing.statement_lines import Span
from billing.statements import hash_of


def faults(statement: Statement) -> list[str]:
    """What of a statement does not hold, in plain words for whoever runs the platform; empty if all of it does.

    The body against its hash and its row, against the one before, and against the ledger, from which every line is derived again.
    """
    body = statement.body
    found = []
    if hash_of(body) != statement.sha256:
        found.append("the body does not have the hash that was kept with it")
    row = (
        statement.kind,
        statement.series,
        statement.number,
        statement.reference,
        str(statement.organisation.public_id),
    )
    if row != (body["kind"], body["series"], body["number"], body["reference"], body["organisation"]["id"]):
        found.append("the body is of another statement")
    found += _chain_faults(statement) + _ledger_faults(statement) + _sum_faults(body)
    return found


def _chain_faults(statement: Statement) -> list[str]:
    body = statement.body
    before = (
        Statement.objects.filter(
            organisation=statement.organisation, series=statement.series, number__lt=statement.number
        )
        .order_by("-number")
        .first()
    )
    named = {"number": before.full_number, "sha256": before.sha256} if before else None
    opening = before.body.get("carried_micro", before.body["closing_micro"]) if before else 0
    found = []
    if body["previous"] != named:
        found.append("it does not name the statement before it")
    if body["opening_micro"] != opening:
        found.append(f"it opens with {body['opening_micro']} micro-USDC where {opening} were carried forward")
    return found


def _ledger_faults(statement: Statement) -> list[str]:
    body, span = statement.body, Span.from_data(statement.body["span"])
    account = Account.objects.filter(code=f"{body['account']}:{statement.organisation.public_id}").first()
    if account is None:
        return ["its account is not in the ledger"]
    found = []
    lines = statement_lines.derive(account, span)
    if lines != body["lines"]:
        found.append("its lines are not those of the ledger")
    moved = statement_lines.total(account, span)
    if body["opening_micro"] + moved != body["closing_micro"]:
        found.append(
            f"it closes with {body['closing_micro']} micro-USDC where the ledger comes to {body['opening_micro'] + moved}"
        )
    if statement.kind == Statement.Kind.PAYOUT:
        whole = statement_lines.total(account, Span(first=0, last=span.last))
        if whole != body["closing_micro"]:
            found.append(f"all transfers up to its last come to {whole} micro-USDC, not to its closing balance")
        found += _reserve_faults(account, statement)
    return found


def _reserve_faults(account: Account, statement: Statement) -> list[str]:
    """The payout itself: exactly one transfer took exactly the amount out of the account, right after the statement."""
    body = statement.body
    taken = list(
        Transfer.objects.filter(debit=account, kind=Move.PAYOUT, reference=statement.reference).values_list(
            "pk", "amount_micro"
        )
    )
    if len(taken) != 1 or taken[0][1] != body["amount_micro"]:
        return [
            f"the ledger set aside {sum(amount for _pk, amount in taken)} micro-USDC, the statement says {body['amount_micro']}"
        ]
    between = statement_lines.total(account, Span(first=body["span"]["last"] + 1, last=taken[0][0] - 1))
    return ["money moved between the statement and its payout"] if between else []


def _sum_faults(body: dict[str, Any]) -> list[str]:
    found = []
    earning = body["account"] == Kind.PROVIDER_PAYABLE
    if body["opening_micro"] + sum(line["amount_micro"] for line in body["lines"]) != body["closing_micro"]:
        found.append("its lines do not come to its closing balance")
    for line in body["lines"]:
        if line["kind"] == "rental":
            part = line["gross_micro"] - line["fee_micro"] if earning else -line["gross_micro"]
            if part != line["amount_micro"]:
                found.append(f"the line of {line['day']} for meter {line['meter']} does not add up")
    if body["kind"] == Statement.Kind.PAYOUT:
        payable = max(0, body["closing_micro"] - body["later_micro"] - body["kept_micro"])
        if body["payable_micro"] != payable or not 0 < body["amount_micro"] <= payable:
            found.append(f"it pays {body['amount_micro']} micro-USDC of {payable} payable")
        if body["carried_micro"] != body["closing_micro"] - body["amount_micro"]:
            found.append("what it carries forward is not what is left")
    return found
