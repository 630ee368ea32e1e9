"""scratch: independent F tests"""
import json, threading, uuid, random
from datetime import UTC, datetime, timedelta
import pytest
from django.conf import settings as ds
from django.db import connection, transaction, connections
from billing import ledger, metering, treasury, deposits, adjustments, debts, references, deposit_requests, collecting, strays
from billing.ledger import Kind, Move, Posting
from billing.models import *
from gpunex.accounts.models import *
from gpunex.policy.models import Policy
from payouts import runs, usdc, methods, returns, approvals, review
from payouts.bank import files, imports
from payouts.books import verify_books
from payouts.models import *
from tests import chainkit
from tests.billing.test_ledger import together
from tests.billing.conftest import start_meter, fund
from tests.payouts.bank.conftest import sepa_account, earner, quote
from tests.wallets import connect_wallet
from .conftest import USDC, connect, earn, fill, organisation, owned, person, run_until_done, provider_with

pytestmark = pytest.mark.django_db(transaction=True)

@pytest.fixture
def two(committed, mended):
    at = datetime.now(UTC)
    return at, person("a", is_staff=True, is_superuser=True), person("b", is_staff=True, is_superuser=True)

def oc(org, admin, at, micro=None):
    return runs.pay_off_cycle(organisation=org, by=admin, reason="x", at=at, amount_micro=micro)

def test_f1(two):
    at, a, _ = two
    p = oc(provider_with(30*USDC, at=at), a, at)
    chainkit.faults(hide_status_s=3600.0, timeout_after_land=1)
    for s in (0, 1, 30, 60, 90, 100, 130, 300): together(2, lambda n: usdc.advance(at=at+timedelta(seconds=s)))
    assert p.attempts.count() == 1
    chainkit.faults(reset=True)
    assert run_until_done(p, at=at+timedelta(seconds=400)).state == "paid"
    assert chainkit.held(p.destination) == 30*USDC and verify_books().problems == []

def test_f8(two):
    at, a, _ = two
    from solders.keypair import Keypair
    k = Keypair()
    orgs = [provider_with(USDC, at=at, key=k) for _ in range(3)]
    ps = [oc(o, a, at, USDC) for o in orgs]
    usdc.advance(at=at)
    assert len({x.blockhash for x in Attempt.objects.all()}) == 1 and len({x.signature for x in Attempt.objects.all()}) == 3
    for p in ps: assert run_until_done(p, at=at).state == "paid"
    assert chainkit.held(str(k.pubkey())) == 3*USDC

def test_f13(two):
    at, a, _ = two
    o = provider_with(30*USDC, at=at)
    p = oc(o, a, at)
    chainkit.faults(timeout_after_land=1, hide_status_s=3600.)
    usdc.advance(at=at)
    runs.make_due(at=at+timedelta(hours=25)); usdc.advance(at=at+timedelta(hours=25))
    earn(o, 30*USDC, at=at)
    with pytest.raises(Exception): review.take_back(payout=p, by=a, reason="ambiguous", at=at+timedelta(hours=25))
    assert p.attempts.count() == 1 and owned(o, Kind.PROVIDER_PAYABLE) == 30*USDC
    chainkit.faults(reset=True)
    assert run_until_done(p, at=at+timedelta(hours=26)).state == "paid"
    assert chainkit.held(p.destination) == 30*USDC

def test_f14(two):
    at, a, _ = two
    r, p = organisation("r"), organisation("p")
    fund(r, 100*USDC, at=at-timedelta(hours=3))
    m = start_meter(r, p, at=at-timedelta(hours=2))
    metering.prove(until={m.pk: at})
    with connection.cursor() as c:
        c.execute("CREATE OR REPLACE FUNCTION boom() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'boom'; END $$")
        c.execute("CREATE TRIGGER boom BEFORE INSERT ON billing_transfer FOR EACH ROW EXECUTE FUNCTION boom()")
    metering.settle(at=at)
    assert Transfer.objects.filter(kind="charge").count() == 0
    with connection.cursor() as c: c.execute("DROP TRIGGER boom ON billing_transfer")
    together(4, lambda n: metering.settle(at=at+timedelta(seconds=n)))
    m.refresh_from_db()
    assert m.billed_gross_micro == 5*USDC == 100*USDC - owned(r)

def test_f22(two):
    at, a, _ = two
    o = organisation("r")
    row = deposits.address_for(o, at=at)
    req = deposit_requests.ask(organisation=o, amount_micro=5*USDC, by=o.created_by, at=at)
    deposits.pay_with_test_wallet(request=req, at=at)
    together(6, lambda n: (deposits.find_deposits if n % 2 else references.watch)(at=at+timedelta(seconds=1)))
    deposits.find_deposits(at=at+timedelta(minutes=20)); references.watch(at=at+timedelta(minutes=20))
    assert owned(o) == 5*USDC and Deposit.objects.count() == 1
    req.refresh_from_db(); assert req.state == "paid"
    together(3, lambda n: collecting.sweep_deposits(at=at+timedelta(minutes=1)))
    collecting.sweep_deposits(at=at+timedelta(minutes=2))
    assert verify_books().problems == []

def test_f26(two):
    at, a, _ = two
    r, p = organisation("r"), organisation("p")
    fund(r, 100*USDC, at=at)
    n = 0
    for _ in range(20):
        try:
            with transaction.atomic():
                ledger.post(key="fee:1", debit=ledger.account(Kind.RENTER_BALANCE, organisation=r), credit=ledger.account(Kind.FEE), amount_micro=USDC, kind=Move.FEE, at=at)
                raise RuntimeError
        except RuntimeError: n += 1
    for _ in range(20):
        ledger.post(key="fee:1", debit=ledger.account(Kind.RENTER_BALANCE, organisation=r), credit=ledger.account(Kind.FEE), amount_micro=USDC, kind=Move.FEE, at=at+timedelta(seconds=1))
    assert owned(r) == 99*USDC

def test_f27(two):
    at, a, _ = two
    o = organisation("r"); fill(o, 100*USDC, at=at); connect(o, at=at)
    won = []
    def go(n):
        try: returns.ask_back(organisation=o, amount_micro=80*USDC, by=o.created_by, at=at, key=str(n)); won.append(n)
        except ledger.NotEnoughMoney: pass
    together(12, go)
    assert len(won) == 1 and owned(o) == 20*USDC and PayoutRun.objects.count() == 1

def test_f31(two):
    at, a, b = two
    r, p = organisation("r"), organisation("p")
    fund(r, 100*USDC, at=at-timedelta(hours=3))
    m = start_meter(r, p, at=at-timedelta(hours=2))
    m = metering.close_meter(meter=m, ended_at=at-timedelta(hours=1), at=at)
    t = Transfer.objects.get(kind="charge")
    asked = adjustments.ask_reversal(transfer=t, reason="x", by=a, at=at)
    c = person("c", is_staff=True)
    refund = adjustments.ask_refund(meter=m, amount_micro=2*USDC, from_earnings=False, reason="x", by=a, at=at)
    errs = []
    def go(n):
        try: adjustments.make(adjustment=asked if n % 2 else refund, by=[b, c][n // 2 % 2], at=at)
        except Exception as e: errs.append(type(e).__name__)
    together(8, go)
    print(errs)
    m.refresh_from_db()
    assert m.refunded_micro <= m.billed_gross_micro
    assert owned(r) in (100*USDC - 2_500_000 + 2_300_000, 100*USDC - 500_000)
    assert [p for p in verify_books(with_chain=False).problems] == []

def test_f33(two):
    at, a, b = two
    orgs = [provider_with(30*USDC, at=at-timedelta(days=9)) for _ in range(4)]
    r = organisation("r"); fund(r, 50*USDC, at=at-timedelta(hours=9))
    m = [start_meter(r, o, at=at-timedelta(hours=2)) for o in orgs]
    metering.prove(until={x.pk: at for x in m})
    from billing import tasks as bt
    from payouts import tasks as pt
    names = [getattr(mod, n) for mod in (bt, pt) for n in dir(mod) if hasattr(getattr(mod, n), "delay")]
    print([n.name for n in names])
    def go(n):
        for t in random.Random(n).sample(names, len(names)):
            t()
    print([x for x in together(4, go) if x is not None])
    for i in range(6): go(i)
    for o in orgs:
        ps = list(Payout.objects.filter(organisation=o))
        assert len(ps) == 1 and ps[0].state == "paid", ps
        assert chainkit.held(ps[0].destination) == ps[0].amount_micro
    print(verify_books().problems)

def test_f47(two):
    at, a, b = two
    quote("EUR", USDC, by=a, at=at)
    monday = at.replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=at.weekday())
    orgs = [earner(30*USDC, at=monday-timedelta(days=2)) for _ in range(3)]
    runs.make_due(at=at)
    run = PayoutRun.objects.get(rail="sepa")
    PayoutRun.objects.update(execute_on=at.date())
    got = []
    together(4, lambda n: got.append(files.make(run=run, by=[a, b][n % 2], at=at)))
    assert len({g.file.pk for g in got}) == 1 and sum(g.new for g in got) == 1
    f = got[0].file
    assert len({files.content(f) for _ in range(3)}) == 1
    files.mark_exported(file=f, by=a, at=at)
    with pytest.raises(files.HandedOverAlready): files.mark_exported(file=f, by=b, at=at)
    for w in range(5): runs.make_due(at=at+timedelta(hours=w))
    assert BankTransfer.objects.count() == 3 and PayoutRun.objects.filter(rail="sepa").count() == 1

def test_f55(two):
    at, a, b = two
    monday = datetime(2026, 11, 23, tzinfo=UTC)
    o = provider_with(25*USDC, at=monday-timedelta(minutes=11))
    earn(o, 40*USDC, at=monday+timedelta(hours=1))
    t = Transfer.objects.filter(credit__organisation=o).order_by("-pk")[0]
    p = None
    runs.make_due(at=monday+timedelta(days=1, hours=4))
    p = Payout.objects.get()
    assert p.amount_micro == 25*USDC and p.run.period_end == monday

def test_break_vs_payout(two):
    """a provider is paid off cycle while a rental of his breaks: the platform loses no more than its fee"""
    at, a, b = two
    Policy.load()
    for seed in range(6):
        r, p = organisation("r"), organisation("p")
        fund(r, 100*USDC, at=at-timedelta(hours=30)); connect(p, at=at)
        ms = [start_meter(r, p, at=at-timedelta(hours=5), rate=2*USDC, fee_bps=1000) for _ in range(3)]
        metering.prove(until={m.pk: at for m in ms}); metering.settle_payer(organisation=r, at=at)
        def go(n):
            if n == 0:
                for k in range(3):
                    try: oc(p, a, at)
                    except Exception as e: pass
            else:
                m = ms[n-1]
                with transaction.atomic():
                    c = metering.close_meter(meter=m, ended_at=at, at=at)
                    debts.credit(meter=c, amount_micro=min(c.billed_gross_micro, 4*USDC), data={}, advance=True, at=at)
        together(4, go)
        assert debts.open_debt(p) == 0, debts.open_debt(p)
    print(verify_books(with_chain=False).problems)

def test_approvals_race(two):
    at, a, b = two
    Policy.load(); Policy.objects.update(payout_cap_micro=USDC)
    o = provider_with(30*USDC, at=at)
    p = oc(o, a, at)
    errs = []
    def go(n):
        try: approvals.approve(payout=p, by=a, at=at)
        except Exception as e: errs.append(type(e).__name__)
    print([x for x in together(4, go) if x is not None])
    p.refresh_from_db()
    assert p.state == "reserved" and set(errs) == {"ApprovedAlready"}
