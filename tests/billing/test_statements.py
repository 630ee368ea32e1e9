"""Statements: every transfer in exactly one, lines that sum, numbers without gaps, and nothing changed afterwards."""

import copy
import random
import uuid
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from django.db import DatabaseError, connection, transaction
from django.db.models import Q

from billing import ledger, metering, statement_proof, statements
from billing.ledger import Kind, Move, Posting
from billing.models import Account, Meter, Statement, StatementSeries, Transfer
from gpunex.accounts.models import Organisation

from .conftest import USDC, fund, organisation, owned, start_meter
from .test_ledger import together

HOUR, DAY = timedelta(hours=1), timedelta(days=1)


def payable(org: Organisation) -> Account:
    return ledger.account(Kind.PROVIDER_PAYABLE, organisation=org)


@transaction.atomic
def pay(
    org: Organisation, micro: int, *, at: datetime, source: Kind = Kind.PROVIDER_PAYABLE, later: int = 0, kept: int = 0
) -> Statement:
    """A payout as ``payouts.runs`` makes it: the statement under the account's lock, then the money set aside."""
    account = ledger.account(source, organisation=org)
    Account.objects.select_for_update(no_key=True).get(pk=account.pk)
    reference = uuid.uuid4()
    statement = statements.issue_payout(
        organisation=org,
        reference=reference,
        amount_micro=micro,
        period_start=at - 7 * DAY,
        period_end=at,
        later_micro=later,
        kept_micro=kept,
        at=at,
        kind_of_run="cycle",
        source=source,
    )
    transit = ledger.account(Kind.IN_TRANSIT, organisation=org, reference=reference)
    ledger.post(
        key=f"payout:{reference}:reserve",
        debit=account,
        credit=transit,
        amount_micro=micro,
        kind=Move.PAYOUT,
        reference=str(reference),
        at=at,
    )
    return statement


def fail(statement: Statement, *, at: datetime) -> None:
    org, reference = statement.organisation, statement.reference
    ledger.post(
        key=f"payout:{reference}:back",
        debit=ledger.account(Kind.IN_TRANSIT, organisation=org, reference=reference),
        credit=ledger.account(statement.body["account"], organisation=org),
        amount_micro=statement.body["amount_micro"],
        kind=Move.BACK,
        reference=reference,
        reason="frozen",
        at=at,
    )


def move(debit: Account, credit: Account, micro: int, kind: Move, *, at: datetime, reason: str = "") -> Transfer:
    return ledger.post(
        key=f"{kind}:{uuid.uuid4()}",
        debit=debit,
        credit=credit,
        amount_micro=micro,
        kind=kind,
        reference=str(uuid.uuid4()),
        reason=reason,
        at=at,
    )


def run(meter: Meter, *, until: datetime) -> None:
    metering.prove(until={meter.pk: until})
    metering.settle_payer(organisation=meter.payer, at=until)


def rentals(statement: Statement) -> list[dict[str, Any]]:
    return [line for line in statement.body["lines"] if line["kind"] == "rental"]


# --- payout statements -----------------------------------------------------------------------------------------------


@pytest.mark.spec("G1", "H1")
def test_a_payout_statement_says_per_rental_and_day_what_is_paid(
    renter: Organisation, provider: Organisation, noon: datetime
) -> None:
    meter = start_meter(renter, provider, at=noon)
    for hours in (1, 2, 11, 13, 30):
        run(meter, until=noon + hours * HOUR)
    statement = pay(provider, 60 * USDC, at=noon + 30 * HOUR, later=USDC, kept=2 * USDC)
    assert statement.full_number == "P-000001"
    first, second = rentals(statement)
    assert (first["day"], first["since_second"], first["seconds"]) == ("2026-10-14", 0, 12 * 3600)
    assert (first["gross_micro"], first["fee_micro"], first["amount_micro"]) == (30_000_000, 2_400_000, 27_600_000)
    assert (second["day"], second["since_second"], second["seconds"]) == ("2026-10-15", 12 * 3600, 18 * 3600)
    assert (first["model"], first["units"], first["machine"], first["state"]) == ("H100 80GB", 1, "fra-1", "running")
    body = statement.body
    assert (body["opening_micro"], body["closing_micro"], body["payable_micro"]) == (0, 69_000_000, 66_000_000)
    assert (body["amount_micro"], body["carried_micro"]) == (60_000_000, 9_000_000)
    assert owned(provider, Kind.PROVIDER_PAYABLE) == body["carried_micro"]
    assert statement_proof.faults(statement) == []


@pytest.mark.spec("H1")
def test_statements_follow_each_other_and_a_failed_payout_is_a_line_of_the_next(
    renter: Organisation, provider: Organisation, noon: datetime
) -> None:
    meter = start_meter(renter, provider, at=noon)
    run(meter, until=noon + 4 * HOUR)
    first = pay(provider, 5 * USDC, at=noon + 4 * HOUR)
    fail(first, at=noon + 5 * HOUR)
    move(payable(provider), ledger.account(Kind.CREDITS), 150_000, Move.CREDIT, at=noon + 5 * HOUR)
    move(
        ledger.account(Kind.ADJUSTMENTS),
        payable(provider),
        70_000,
        Move.ADJUSTMENT,
        at=noon + 5 * HOUR,
        reason="goodwill",
    )
    run(meter, until=noon + 6 * HOUR)
    second = pay(provider, 12 * USDC, at=noon + 6 * HOUR)
    assert second.number == 2
    assert second.body["opening_micro"] == first.body["carried_micro"]
    assert second.body["previous"] == {"number": "P-000001", "sha256": first.sha256}
    kinds = {line["kind"]: line["amount_micro"] for line in second.body["lines"]}
    assert kinds == {"payout_back": 5 * USDC, "credit": -150_000, "adjustment": 70_000, "rental": 4_600_000}
    assert next(line for line in second.body["lines"] if line["kind"] == "adjustment")["reason"] == "goodwill"
    assert rentals(second)[0]["since_second"] == 4 * 3600
    assert statement_proof.faults(first) == statement_proof.faults(second) == []


def test_a_second_payout_right_after_the_first_has_no_lines(
    renter: Organisation, provider: Organisation, noon: datetime
) -> None:
    run(start_meter(renter, provider, at=noon), until=noon + 4 * HOUR)
    pay(provider, USDC, at=noon + 4 * HOUR)
    second = pay(provider, 2 * USDC, at=noon + 4 * HOUR)
    assert second.body["lines"] == []
    assert second.body["opening_micro"] == second.body["closing_micro"] == 8_200_000
    assert statement_proof.faults(second) == []


def test_a_tick_too_short_for_a_micro_usdc_leaves_no_gap_in_the_seconds(
    renter: Organisation, provider: Organisation, noon: datetime
) -> None:
    """At 900 micro-USDC an hour a second is a quarter of one: most ticks post nothing, and a fee comes alone now and then."""
    meter = start_meter(renter, provider, at=noon, rate=900, fee_bps=9_000)
    issued, at = [], noon
    for part in range(4):
        for _tick in range(40):
            at += timedelta(seconds=7 + part)
            run(meter, until=at)
        issued.append(pay(provider, 1, at=at))
    lines = [line for statement in issued for line in rentals(statement)]
    assert all(line["gross_micro"] == line["fee_micro"] + line["amount_micro"] for line in lines)
    assert [line["since_second"] for line in lines[1:]] == [
        line["since_second"] + line["seconds"] for line in lines[:-1]
    ]
    assert [fault for statement in issued for fault in statement_proof.faults(statement)] == []


@pytest.mark.spec("G3")
def test_a_return_of_balance_has_a_series_and_a_chain_of_its_own(
    renter: Organisation, provider: Organisation, noon: datetime
) -> None:
    run(start_meter(renter, provider, at=noon), until=noon + 2 * HOUR)
    first = pay(renter, 20 * USDC, at=noon + 2 * HOUR, source=Kind.RENTER_BALANCE)
    second = pay(renter, 5 * USDC, at=noon + 3 * HOUR, source=Kind.RENTER_BALANCE)
    earned = pay(provider, USDC, at=noon + 3 * HOUR)
    assert [first.full_number, second.full_number, earned.full_number] == ["B-000001", "B-000002", "P-000001"]
    assert first.body["closing_micro"] == 95 * USDC
    assert rentals(first)[0]["amount_micro"] == -5 * USDC
    assert rentals(first)[0]["fee_micro"] == 400_000
    assert second.body["opening_micro"] == 75 * USDC
    assert [statement_proof.faults(row) for row in (first, second, earned)] == [[], [], []]


def test_issuing_for_a_payout_again_returns_the_first_statement(
    renter: Organisation, provider: Organisation, noon: datetime
) -> None:
    run(start_meter(renter, provider, at=noon), until=noon + 4 * HOUR)
    first = pay(provider, USDC, at=noon + 4 * HOUR)
    again = statements.issue_payout(
        organisation=provider,
        reference=first.reference,
        amount_micro=USDC,
        period_start=noon,
        period_end=noon + HOUR,
        later_micro=0,
        kept_micro=0,
        at=noon + 9 * HOUR,
        kind_of_run="cycle",
        source=Kind.PROVIDER_PAYABLE,
    )
    assert again.pk == first.pk
    assert StatementSeries.objects.get(name="P").last_number == 1


def test_books_that_disagree_issue_nothing(renter: Organisation, provider: Organisation, noon: datetime) -> None:
    run(start_meter(renter, provider, at=noon), until=noon + 4 * HOUR)
    Account.objects.filter(code=f"{Kind.PROVIDER_PAYABLE}:{provider.public_id}").update(balance_micro=9_200_001)
    with pytest.raises(statements.BooksDisagree):
        pay(provider, USDC, at=noon + 4 * HOUR)
    assert not Statement.objects.exists()
    assert not StatementSeries.objects.filter(last_number__gt=0).exists()


# --- against an independent reference --------------------------------------------------------------------------------


def naive(org: Organisation, kind: Kind, issued: list[Statement]) -> list[dict[str, int]]:
    """What each statement's lines must come to, by meter and day or by transfer, from the plain list of transfers."""
    account = Account.objects.get(code=f"{kind}:{org.public_id}")
    rows = list(Transfer.objects.filter(Q(debit=account) | Q(credit=account)).order_by("pk"))
    reserves = {row.reference: row.pk for row in rows if row.kind == Move.PAYOUT}
    found, start = [], 0
    for statement in issued:
        end = reserves[statement.reference]
        sums: dict[str, int] = defaultdict(int)
        for row in rows:
            if start < row.pk < end:
                day = row.effective_at.astimezone(UTC).date().isoformat()
                name = f"{row.reference} {day}" if row.kind in (Move.CHARGE, Move.FEE) else str(row.pk)
                sums[name] += row.amount_micro if row.credit_id == account.pk else -row.amount_micro
        found.append(dict(sums))
        start = end
    return found


def told(statement: Statement) -> dict[str, int]:
    return {
        f"{line['meter']} {line['day']}" if line["kind"] == "rental" else str(line["transfer"]): line["amount_micro"]
        for line in statement.body["lines"]
    }


class Course:
    """A random life of one renter and one provider: rentals, credits, corrections, payouts, some of which fail."""

    def __init__(self, renter: Organisation, provider: Organisation, *, seed: int, at: datetime) -> None:
        self.renter, self.provider, self.at = renter, provider, at
        self.source = random.Random(seed)
        self.meters: list[Meter] = []
        self.issued: list[Statement] = []

    @property
    def have(self) -> int:
        return owned(self.provider, Kind.PROVIDER_PAYABLE)

    def step(self) -> None:
        self.at += timedelta(seconds=self.source.randrange(1, 30_000))
        acts = (self.start, self.run, self.run, self.run, self.stop, self.credit, self.adjust, self.pay, self.fail)
        (self.source.choice(acts) if self.meters else self.start)()

    def start(self) -> None:
        rate, bps = self.source.randrange(1, 9 * USDC), self.source.choice((0, 800, 1000, 3333))
        units = self.source.randrange(1, 9)
        self.meters.append(start_meter(self.renter, self.provider, at=self.at, rate=rate, fee_bps=bps, quantity=units))

    def run(self) -> None:
        metering.prove(until={meter.pk: self.at for meter in self.meters if self.source.random() < 0.8})
        metering.settle_payer(organisation=self.renter, at=self.at)

    def stop(self) -> None:
        metering.close_meter(
            meter=self.meters.pop(self.source.randrange(len(self.meters))), ended_at=self.at, at=self.at
        )

    def credit(self) -> None:
        if self.have > 10:
            part = self.source.randrange(1, self.have // 2)
            move(payable(self.provider), ledger.account(Kind.CREDITS), part, Move.CREDIT, at=self.at)

    def adjust(self) -> None:
        part = self.source.randrange(1, USDC)
        move(ledger.account(Kind.ADJUSTMENTS), payable(self.provider), part, Move.ADJUSTMENT, at=self.at)

    def pay(self) -> None:
        if self.have > 1:
            part = self.have if self.source.random() < 0.5 else self.source.randrange(1, self.have)
            self.issued.append(pay(self.provider, part, at=self.at))

    def fail(self) -> None:
        if self.issued and not Transfer.objects.filter(key=f"payout:{self.issued[-1].reference}:back").exists():
            fail(self.issued[-1], at=self.at)


@pytest.mark.spec("G1", "H1")
@pytest.mark.case("money-F18")
@pytest.mark.parametrize("seed", range(6))
def test_any_course_of_rentals_credits_and_payouts_is_told_exactly_once(
    seed: int, renter: Organisation, provider: Organisation, noon: datetime
) -> None:
    fund(renter, 2_000 * USDC, at=noon)
    course = Course(renter, provider, seed=seed, at=noon)
    for _step in range(50):
        course.step()
    course.run()
    course.pay()
    issued = course.issued
    assert [told(statement) for statement in issued] == naive(provider, Kind.PROVIDER_PAYABLE, issued)
    assert [statement.number for statement in issued] == list(range(1, len(issued) + 1))
    assert {fault for statement in issued for fault in statement_proof.faults(statement)} == set()
    # Of each meter: the seconds follow each other, and net and fee are those that the meter's own totals say.
    parts: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for statement in issued:
        for line in rentals(statement):
            parts[line["meter"]].append(line)
    for reference, lines in parts.items():
        meter, reached = Meter.objects.get(public_id=reference), 0
        for line in lines:
            assert line["since_second"] == reached
            reached += line["seconds"]
        gross = metering.gross_of(meter.rate_micro_per_hour, reached)
        assert sum(line["gross_micro"] for line in lines) == gross
        assert sum(line["fee_micro"] for line in lines) == metering.fee_of(gross, meter.fee_bps)
    assert ledger.verify_books().drift_micro == 0


# --- months ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def october() -> datetime:
    return datetime(2026, 10, 30, 12, 0, tzinfo=UTC)


@pytest.fixture
def november() -> datetime:
    return datetime(2026, 11, 1, tzinfo=UTC)


@pytest.mark.spec("G1", "J1")
def test_a_month_is_issued_once_its_meters_are_billed_to_its_end(
    provider: Organisation, october: datetime, november: datetime
) -> None:
    renter = organisation("renter")
    fund(renter, 500 * USDC, at=october)
    meter = start_meter(renter, provider, at=october)
    metering.prove(until={meter.pk: november - HOUR})
    # The machine is silent: nobody knows yet whether the last hour will be billed.
    assert statements.issue_months(at=november + HOUR) == 0
    metering.prove(until={meter.pk: november + HOUR})
    assert statements.issue_months(at=november + HOUR) == 1
    assert statements.issue_months(at=november + 2 * HOUR) == 0
    statement = Statement.objects.get()
    assert (statement.full_number, statement.reference) == ("R-000001", "2026-10")
    assert (statement.period_start, statement.period_end) == (datetime(2026, 10, 1, tzinfo=UTC), november)
    deposit, *lines = statement.body["lines"]
    assert (deposit["kind"], deposit["amount_micro"]) == ("deposit", 500 * USDC)
    assert [(line["day"], line["seconds"] // 3600) for line in lines] == [("2026-10-30", 12), ("2026-10-31", 24)]
    assert sum(line["amount_micro"] for line in lines) == -36 * 2_500_000
    assert sum(line["fee_micro"] for line in lines) == 36 * 200_000
    assert statement.body["closing_micro"] == 410 * USDC
    assert owned(renter) == 410 * USDC - 2_500_000  # the first hour of November is of the next one
    assert statement_proof.faults(statement) == []


@pytest.mark.spec("G1")
def test_a_proof_that_comes_after_a_day_is_a_late_line_of_the_next_month(
    provider: Organisation, october: datetime, november: datetime
) -> None:
    renter = organisation("renter")
    fund(renter, 500 * USDC, at=october)
    meter = start_meter(renter, provider, at=october)
    metering.prove(until={meter.pk: november - HOUR})
    assert statements.issue_months(at=november + 23 * HOUR) == 0
    fund(renter, USDC, at=november + 24 * HOUR)
    assert statements.issue_months(at=november + 24 * HOUR) == 1
    first = Statement.objects.get()
    frozen = copy.deepcopy(first.body)
    # The host is back, and proves that the container had run on.
    metering.close_meter(meter=meter, ended_at=november + 30 * HOUR, at=november + 30 * HOUR)
    december = datetime(2026, 12, 1, tzinfo=UTC)
    assert statements.issue_months(at=december + timedelta(minutes=5)) == 1
    first.refresh_from_db()
    assert first.body == frozen
    second = Statement.objects.get(reference="2026-11")
    assert second.body["opening_micro"] == first.body["closing_micro"]
    days = [line.get("day") or line["at"][:10] for line in second.body["lines"]]
    assert days == ["2026-10-31", "2026-11-01", "2026-11-02", "2026-11-02"]
    assert rentals(second)[0]["seconds"] == 3600
    assert second.body["closing_micro"] == owned(renter)
    assert statement_proof.faults(first) == statement_proof.faults(second) == []


@pytest.mark.case("money-F55")
def test_after_months_of_downtime_each_month_with_a_movement_is_issued_in_order(
    provider: Organisation, october: datetime
) -> None:
    renter, idle = organisation("renter"), organisation("idle")
    ledger.account(Kind.RENTER_BALANCE, organisation=idle)
    fund(renter, 10 * USDC, at=datetime(2026, 8, 3, tzinfo=UTC))
    fund(renter, 20 * USDC, at=october)
    fund(renter, 30 * USDC, at=datetime(2026, 12, 31, 23, 59, 59, tzinfo=UTC))
    fund(renter, 40 * USDC, at=datetime(2027, 1, 1, tzinfo=UTC))
    assert statements.issue_months(at=datetime(2027, 1, 1, 0, 10, tzinfo=UTC)) == 3
    issued = list(Statement.objects.order_by("number"))
    assert [row.reference for row in issued] == ["2026-08", "2026-10", "2026-12"]
    assert [row.body["closing_micro"] // USDC for row in issued] == [10, 30, 60]
    assert [len(row.body["lines"]) for row in issued] == [1, 1, 1]
    assert {fault for row in issued for fault in statement_proof.faults(row)} == set()
    assert statements.issue_months(at=datetime(2027, 2, 1, 0, 10, tzinfo=UTC)) == 1
    assert Statement.objects.get(reference="2027-01").body["closing_micro"] == 100 * USDC


def test_a_month_of_a_leap_year_ends_with_its_29th_day(db: None) -> None:
    assert statements.month_of("2028-02") == (datetime(2028, 2, 1, tzinfo=UTC), datetime(2028, 3, 1, tzinfo=UTC))
    renter = organisation("renter")
    fund(renter, USDC, at=datetime(2028, 2, 29, 23, 59, tzinfo=UTC))
    assert statements.issue_months(at=datetime(2028, 3, 1, 0, 1, tzinfo=UTC)) == 1
    assert Statement.objects.get().reference == "2028-02"


def test_one_organisation_that_fails_stops_no_other(provider: Organisation, october: datetime) -> None:
    bad, good = organisation("bad"), organisation("good")
    for org in (bad, good):
        fund(org, USDC, at=october)
    Account.objects.filter(code=f"{Kind.RENTER_BALANCE}:{bad.public_id}").update(balance_micro=5)
    assert statements.issue_months(at=datetime(2026, 11, 1, 0, 5, tzinfo=UTC)) == 1
    assert Statement.objects.get().organisation == good


@pytest.mark.parametrize("seed", range(3))
def test_every_movement_of_a_balance_is_in_exactly_one_month(seed: int, provider: Organisation) -> None:
    source, renter = random.Random(seed), organisation("renter")
    at = datetime(2026, 9, 3, tzinfo=UTC)
    fund(renter, 3_000 * USDC, at=at)
    meters: list[Meter] = []
    while at < datetime(2027, 1, 20, tzinfo=UTC):
        at += timedelta(seconds=source.randrange(3_600, 200_000))
        act = source.choice(("start", "run", "run", "stop", "credit", "return", "issue"))
        if act == "start" or not meters:
            meters.append(start_meter(renter, provider, at=at, rate=source.randrange(1, USDC)))
        elif act == "run":
            metering.prove(until={meter.pk: at for meter in meters if source.random() < 0.6})
            metering.settle_payer(organisation=renter, at=at)
        elif act == "stop":
            metering.close_meter(meter=meters.pop(), ended_at=at - HOUR * source.randrange(3), at=at)
        elif act == "credit":
            balance = ledger.account(Kind.RENTER_BALANCE, organisation=renter)
            move(ledger.account(Kind.CREDITS), balance, source.randrange(1, USDC), Move.CREDIT, at=at)
        elif act == "return":
            pay(renter, 1, at=at, source=Kind.RENTER_BALANCE)
        else:
            statements.issue_months(at=at)
    for meter in meters:
        metering.close_meter(meter=meter, ended_at=at, at=at)
    statements.issue_months(at=datetime(2027, 3, 1, tzinfo=UTC))
    issued = list(Statement.objects.filter(series="R").order_by("number"))
    account = Account.objects.get(code=f"{Kind.RENTER_BALANCE}:{renter.public_id}")
    assert issued[-1].body["closing_micro"] == account.balance_micro
    assert {fault for row in issued for fault in statement_proof.faults(row)} == set()
    assert all(later.body["opening_micro"] == earlier.body["closing_micro"] for earlier, later in pairwise(issued))
    singles = [line["transfer"] for row in issued for line in row.body["lines"] if line["kind"] != "rental"]
    whole = Transfer.objects.filter(Q(debit=account) | Q(credit=account)).exclude(kind__in=(Move.CHARGE, Move.FEE))
    assert sorted(singles) == sorted(whole.values_list("pk", flat=True))
    charged = sum(line["amount_micro"] for row in issued for line in rentals(row))
    assert -charged == sum(meter.billed_gross_micro for meter in Meter.objects.filter(payer=renter))


# --- numbers, and what is never changed ------------------------------------------------------------------------------


@pytest.mark.case("money-F25")
@pytest.mark.django_db(transaction=True)
def test_twenty_at_once_get_numbers_without_a_gap_even_if_some_give_up(committed: None, noon: datetime) -> None:
    providers = [organisation("provider") for _ in range(20)]
    for org in providers:
        move(ledger.account(Kind.ADJUSTMENTS), payable(org), USDC, Move.ADJUSTMENT, at=noon)

    def issue(number: int) -> int:
        with transaction.atomic():
            statement = pay(providers[number], USDC, at=noon)
            if number % 4 == 0:
                raise RuntimeError("the worker was killed before it could commit")
            return statement.number

    results = together(20, issue)
    numbers = sorted(result for result in results if isinstance(result, int))
    assert numbers == list(range(1, 16))
    assert sorted(Statement.objects.values_list("number", flat=True)) == numbers
    assert StatementSeries.objects.get(name="P").last_number == 15


@pytest.mark.django_db(transaction=True)
def test_two_sweeps_at_once_issue_a_month_once(committed: None, october: datetime) -> None:
    renters = [organisation("renter") for _ in range(6)]
    for org in renters:
        fund(org, USDC, at=october)
    results = together(4, lambda _number: statements.issue_months(at=datetime(2026, 11, 1, 0, 5, tzinfo=UTC)))
    assert sum(result for result in results if isinstance(result, int)) == 6
    assert sorted(Statement.objects.values_list("number", flat=True)) == [1, 2, 3, 4, 5, 6]


def test_a_statement_cannot_be_changed_or_deleted(renter: Organisation, provider: Organisation, noon: datetime) -> None:
    run(start_meter(renter, provider, at=noon), until=noon + 4 * HOUR)
    statement = pay(provider, USDC, at=noon + 4 * HOUR)
    for change in (
        lambda: Statement.objects.filter(pk=statement.pk).update(sha256="0" * 64),
        lambda: Statement.objects.filter(pk=statement.pk).delete(),
    ):
        with pytest.raises(DatabaseError, match="frozen"), transaction.atomic():
            change()
    statement.refresh_from_db()
    assert statements.hash_of(statement.body) == statement.sha256


def test_the_hash_is_of_one_form_only_and_survives_the_database(
    renter: Organisation, provider: Organisation, noon: datetime
) -> None:
    assert statements.canonical({"ب": 1, "a": [2, {"c": None, "b": "\u2066x"}]}).decode() == (
        '{"a":[2,{"b":"\u2066x","c":null}],"ب":1}'
    )
    provider.name = 'مركز «النخيل» \\ "x" \u0001 😀'
    provider.save()
    run(start_meter(renter, provider, at=noon), until=noon + 4 * HOUR)
    statement = pay(provider, USDC, at=noon + 4 * HOUR)
    again = Statement.objects.get(pk=statement.pk)
    assert statements.hash_of(again.body) == again.sha256 == statements.hash_of(statement.body)
    with pytest.raises(ValueError, match="JSON"):
        statements.canonical({"amount": float("nan")})


# --- tampering is found ----------------------------------------------------------------------------------------------


@pytest.fixture
def issued(renter: Organisation, provider: Organisation, noon: datetime) -> Statement:
    meter = start_meter(renter, provider, at=noon)
    run(meter, until=noon + 4 * HOUR)
    pay(provider, USDC, at=noon + 4 * HOUR)
    run(meter, until=noon + 8 * HOUR)
    return pay(provider, 2 * USDC, at=noon + 8 * HOUR)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("amount_micro",), 3 * USDC),
        (("closing_micro",), 1),
        (("opening_micro",), 0),
        (("carried_micro",), 0),
        (("payable_micro",), 99 * USDC),
        (("lines", 0, "amount_micro"), 9_200_001),
        (("lines", 0, "seconds"), 1),
        (("lines", 0, "fee_micro"), 0),
        (("lines", 0, "model"), "B200"),
        (("previous",), None),
        (("span", "last"), 5),
        (("number",), 7),
        (("organisation", "id"), "somebody"),
    ],
)
def test_a_body_that_was_altered_is_found_even_with_a_new_hash(
    issued: Statement, path: tuple[Any, ...], value: Any
) -> None:
    assert statement_proof.faults(issued) == []
    body = copy.deepcopy(issued.body)
    place = body
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    issued.body = body
    assert "hash" in statement_proof.faults(issued)[0]
    issued.sha256 = statements.hash_of(body)
    assert statement_proof.faults(issued)


def test_a_ledger_that_was_altered_behind_our_back_is_found(
    renter: Organisation, provider: Organisation, noon: datetime
) -> None:
    run(start_meter(renter, provider, at=noon), until=noon + 4 * HOUR)
    with connection.cursor() as cursor:
        cursor.execute("SELECT nextval(pg_get_serial_sequence('billing_transfer', 'id'))")
        (gap,) = cursor.fetchone()
    move(ledger.account(Kind.ADJUSTMENTS), payable(provider), 5, Move.ADJUSTMENT, at=noon)
    statement = pay(provider, USDC, at=noon + 4 * HOUR)
    assert statement_proof.faults(statement) == []
    forged = Transfer(
        pk=gap,
        key="forged",
        debit=ledger.account(Kind.ADJUSTMENTS),
        credit=payable(provider),
        amount_micro=1,
        kind=Move.ADJUSTMENT,
        effective_at=noon,
    )
    forged.save(force_insert=True)
    found = " ".join(statement_proof.faults(statement))
    assert "lines are not those of the ledger" in found
    assert "closes with" in found


def test_money_that_moved_between_statement_and_payout_is_found(issued: Statement, noon: datetime) -> None:
    # The same payout a second time: its reserve is no longer one transfer.
    ledger.post_all(
        [
            Posting(
                key="again",
                debit=payable(issued.organisation),
                credit=ledger.account(Kind.IN_TRANSIT, organisation=issued.organisation, reference=issued.reference),
                amount_micro=USDC,
                kind=Move.PAYOUT,
                reference=issued.reference,
            )
        ],
        at=noon,
    )
    assert any("set aside" in fault for fault in statement_proof.faults(issued))
