"""The demonstration's market: providers through the product's own operations, hosts as real agents, and a past.

The past is written by the same rules, with ``at`` in the past: meters are opened, proved and closed, so that the books of
the weeks before balance like those of today. It happens once; a later start finds its marker.
"""

import json
import os
import secrets
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path

from django.conf import settings
from django.utils import timezone
from solders.keypair import Keypair

from billing import deposits, treasury
from gpunex.accounts.models import Organisation, User
from gpunex.chain.faucet import give
from gpunex.chain.rpc import Rpc
from gpunex.chain.transfers import load_key
from gpunex.demo import history, people
from gpunex.demo.market import APPLICANT, HOUSES, RENTERS, House
from gpunex.kit.money import MICRO, parse_usdc
from gpunex.policy.models import Tier
from marketplace.pricing import set_price
from payouts import challenges
from providers import applications, keys
from providers.applications import Answers, EntryAnswers
from providers.models import Application, Gpu, GpuModel, Machine, Provider

DAYS_OF_PAST = 35
RENTER_FUNDS_MICRO = 60_000 * MICRO
FLEET_SECONDS = 75


def before_fleet(folder: Path) -> Path:
    """People, approved providers, prices and funds; returns the fleet's plan (JSON, mode 0600: it holds API keys)."""
    plan = folder / "fleet.json"
    if plan.exists():
        return plan
    at = timezone.now()
    members = []
    for house in HOUSES:
        key = _open_house(house, at=at)
        members += [
            {
                "name": host.name,
                "profile": host.profile,
                "key": key,
                "state": str(folder / "fleet" / host.name),
                "seed": f"demo-{host.name}-{secrets.token_hex(4)}",
            }
            for host in house.hosts
        ]
    _leave_an_application(at)
    renters = [people.ensure(people.RENTER), *(people.ensure(person, organisation=name) for person, name in RENTERS)]
    fund(renters, at=at - timedelta(days=DAYS_OF_PAST + 1))
    # Whole or not at all: half a plan would stop every later start.
    unfinished = plan.with_suffix(".new")
    unfinished.unlink(missing_ok=True)
    with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump(members, file, indent=1)
    unfinished.replace(plan)
    return plan


def await_fleet(folder: Path, *, say: Callable[[str], None]) -> None:
    """The first time: until the hosts are connected and measured, or have had their time. Later they come back by themselves."""
    if _marker(folder).exists():
        return
    expected = sum(len(house.hosts) for house in HOUSES)
    measured = _wait_for_fleet(expected, say=say)
    if measured < expected:
        say(f"{measured} of {expected} hosts are connected and measured; the others follow.")


def write_past(folder: Path, *, say: Callable[[str], None]) -> None:
    """Once: the hosts' past, some rentals that run now, and first payouts. The pages can be used meanwhile."""
    marker = _marker(folder)
    if marker.exists():
        return
    say("  Writing five weeks of past rentals; the pages can be used meanwhile …")
    history.write(days=DAYS_OF_PAST, at=timezone.now())
    marker.touch()
    say("  The past is written: earnings, prices and scores now show it.")


def _marker(folder: Path) -> Path:
    return folder / "past-written"


def _open_house(house: House, *, at: datetime) -> str:
    """An approved provider with prices and a wallet. Returns an API key for its hosts."""
    organisation = people.ensure(house.person, organisation=house.company)
    user = organisation.created_by
    provider = Provider.objects.filter(organisation=organisation).first()
    if provider is None:
        applied = at - timedelta(days=DAYS_OF_PAST + 6)
        application = applications.open_application(organisation=organisation, by=user, at=applied)
        applications.submit(application=application, answers=_answers(organisation, house), by=user, at=applied)
        applications.approve(
            application=application,
            tier=house.tier,
            by=_admin(),
            at=applied + timedelta(days=1),
            overrule="The site was visited.",
        )
        provider = Provider.objects.get(organisation=organisation)
    for model, price in house.prices.items():
        set_price(
            provider=provider,
            gpu_model=GpuModel.objects.get(name=model),
            price_micro=parse_usdc(price),
            by=user,
            at=at - timedelta(days=DAYS_OF_PAST),
        )
    _connect_wallet(organisation, at=at - timedelta(days=DAYS_OF_PAST))
    return keys.make_api_key(provider=provider, name="demonstration hosts", by=user, at=at)


def _connect_wallet(organisation: Organisation, *, at: datetime) -> None:
    """A wallet of the demonstration's own: its key signs once and is thrown away."""
    user, key = organisation.created_by, Keypair()
    challenge = challenges.issue(organisation=organisation, address=str(key.pubkey()), by=user, at=at)
    signature = str(key.sign_message(challenge.message.encode()))
    challenges.prove(challenge=challenge, signature=signature, organisation=organisation, by=user, at=at)


def _answers(organisation: Organisation, house: House) -> Answers:
    entries = [
        EntryAnswers(
            gpu_model=GpuModel.objects.get(name=model),
            quantity=count,
            host_memory_gb=1024 if house.tier == Tier.ENTERPRISE else 256,
            download_gbps=house.gbps,
            upload_gbps=house.gbps,
            timezone=house.zone,
            country=house.country,
            city=house.city,
        )
        for model, count in house.counts.items()
    ]
    return Answers(
        full_name=house.person.name or organisation.created_by.full_name,
        email=house.person.email,
        company=house.company,
        ups=house.tier == Tier.ENTERPRISE,
        commitment_months=house.commitment_months,
        entries=entries,
    )


def _leave_an_application(at: datetime) -> None:
    """One application that waits in the review queue."""
    organisation = people.ensure(APPLICANT)
    if Application.objects.filter(organisation=organisation).exists():
        return
    application = applications.open_application(organisation=organisation, by=organisation.created_by, at=at)
    site = {
        "download_gbps": Decimal(1),
        "upload_gbps": Decimal("0.5"),
        "country": "EG",
        "city": "Cairo",
        "timezone": "Africa/Cairo",
    }
    answers = Answers(
        full_name=APPLICANT.name,
        email=APPLICANT.email,
        commitment_months=6,
        maintenance_notes="Planned maintenance of two hours on the first Sunday of each month.",
        entries=[
            EntryAnswers(gpu_model=GpuModel.objects.get(name="RTX 4090 24GB"), quantity=4, host_memory_gb=128, **site),
            EntryAnswers(
                other_model="RTX 6000 Ada 48GB",
                quantity=2,
                host_memory_gb=256,
                always_available=False,
                windows=[[day, "20:00", "08:00"] for day in range(7)],
                **site,
            ),
        ],
    )
    applications.submit(application=application, answers=answers, by=organisation.created_by, at=at)


def fund(organisations: list[Organisation], *, at: datetime) -> None:
    """Real deposits on the development chain, found and credited by the product's own watcher as of ``at``, before the past begins."""
    rpc = Rpc(settings.SOLANA_RPC_URLS)
    faucet = load_key(settings.FAUCET_KEY_FILE)
    for organisation in organisations:
        micro = RENTER_FUNDS_MICRO if organisation.name != people.RENTER.name else 2_000 * MICRO
        # The money first and the address on the list last: the running watcher would credit it as of now.
        give(rpc, faucet, settings.USDC_MINT, str(treasury.deposit_key(organisation).pubkey()), micro)
        deposits.address_for(organisation, at=at)
        deposits.find_deposits(at=at)


def _wait_for_fleet(expected: int, *, say: Callable[[str], None]) -> int:
    """Until every host is measured, or the time is up: the demonstration opens all the same."""
    deadline = time.monotonic() + FLEET_SECONDS
    told = time.monotonic()
    while True:
        measured = (
            Machine.objects.live()
            .filter(simulated=True, last_seen_at__gt=timezone.now() - timedelta(seconds=40))
            .exclude(pk__in=Gpu.objects.present().filter(benchmarked_at=None).values("machine"))
            .count()
        )
        if measured >= expected or time.monotonic() > deadline:
            return measured
        if time.monotonic() - told > 5:
            say(f"  {measured} of {expected} hosts are connected and measured …")
            told = time.monotonic()
        time.sleep(0.5)


def _admin() -> User:
    return User.objects.get(email=people.ADMIN.email)
