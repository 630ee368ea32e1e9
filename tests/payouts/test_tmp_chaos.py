import random, sys
import pytest
from payouts.models import Payout
from tests.payouts.test_chaos import *  # noqa
from tests.payouts import test_chaos as c
from tests.payouts.conftest import person
pytestmark = [pytest.mark.django_db(transaction=True)]

def test_find():
    admin, tally = person("admin", is_staff=True, is_superuser=True), c.Tally()
    c.faucet.give_sol(c.treasury.rpc(), c.treasury.address(), 90_000_000_000)
    for seed in range(1000, 1060):
        week = c.Week(number=seed, admin=admin, rng=random.Random(seed))
        week.tell()
        try:
            tally.count(week)
        except AssertionError as e:
            sys.stderr.write(f"SEED {seed} {e}\n")
            for p in week.payouts():
                atts = [(a.number, a.dead, a.sends, a.signed_at.isoformat(), a.last_valid_block_height, c.landed_with(a, p.memo), a.evidence, a.landed_slot) for a in p.attempts.all()]
                if len(atts) > 1 or c.chainkit.held(p.destination) != p.amount_micro:
                    sys.stderr.write(f"{p.public_id} {p.state} {p.run.kind} {p.destination} {p.amount_micro} held {c.chainkit.held(p.destination)} {atts}\n")
            raise
        c._leave(week)
