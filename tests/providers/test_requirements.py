"""What each tier asks of an application, with the numbers of the rows."""

from decimal import Decimal

import pytest

from providers.models import GpuModel
from providers.requirements import EntryFacts, Facts, entries_that_meet, fits

pytestmark = pytest.mark.django_db


def entry(slug="a100-80gb", **changes):
    good = {
        "quantity": 4,
        "host_memory_gb": 512,
        "download_gbps": Decimal(2),
        "upload_gbps": Decimal(2),
        "always_available": True,
    }
    return EntryFacts(model=GpuModel.objects.get(slug=slug) if slug else None, **good | changes)


def facts(*entries, ups=True, commitment_months=6):
    return Facts(entries, ups=ups, commitment_months=commitment_months)


def states(given):
    community, enterprise = fits(given)
    return [check.state for check in community.checks], [check.state for check in enterprise.checks]


@pytest.mark.spec("E1", "E2", "K")
def test_a_strong_application_meets_both_tiers():
    assert states(facts(entry())) == (["ok"] * 4, ["ok"] * 6)


@pytest.mark.spec("E1", "K")
@pytest.mark.parametrize(
    ("given", "missed"),
    [
        (lambda: facts(entry("rtx-4090-24gb")), "Datacenter or workstation models of the catalogue"),
        (
            lambda: facts(entry(None, other_model="RTX 5090", host_memory_gb=512)),
            "Datacenter or workstation models of the catalogue",
        ),
        (lambda: facts(entry(host_memory_gb=319)), "Memory: 32 GB per GPU, and at least the GPUs' VRAM"),
        (lambda: facts(entry("l4-24gb", host_memory_gb=127)), "Memory: 32 GB per GPU, and at least the GPUs' VRAM"),
        (lambda: facts(entry(download_gbps=Decimal("0.999"))), "Internet: 1 Gbps each way"),
        (lambda: facts(entry(always_available=False, hours_a_week=167)), "Around the clock"),
        (lambda: facts(entry(), ups=False), "UPS"),
        (lambda: facts(entry(), commitment_months=3), "Commitment of 6 months or more"),
    ],
)
def test_enterprise_misses_exactly_what_falls_short(given, missed):
    assert [check.text for check in fits(given())[1].missed] == [missed]


@pytest.mark.spec("E2", "K")
def test_community_asks_less():
    small = entry(
        "rtx-4090-24gb",
        quantity=1,
        host_memory_gb=24,
        download_gbps=Decimal("0.1"),
        upload_gbps=Decimal("0.1"),
        always_available=False,
    )
    assert states(facts(small, ups=False, commitment_months=3))[0] == ["ok"] * 4


def test_what_is_not_answered_waits():
    community, _enterprise = fits(Facts([EntryFacts()]))
    assert {check.state for check in community.checks} == {"idle"}
    assert community.checks[0].notes == ["entry 1: waits for its model"]


def test_the_worst_entry_decides_and_is_named():
    community, _enterprise = fits(facts(entry(), entry(upload_gbps=Decimal("0.05"))))
    internet = community.checks[2]
    assert (internet.state, internet.notes) == ("bad", ["entry 2: upload 0.05 Gbps"])
    assert entries_that_meet(facts(entry(), entry("rtx-4090-24gb")), "enterprise") == [1]
