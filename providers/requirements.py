"""Which tier's requirements the answers of an application meet, and which they miss (specification K).

The same checks stand beside the form while it is filled in, on the application's page and in the review. What only the
machine can tell (cores, disk, driver, Docker) is checked by the agent after approval.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Literal

from django.utils.translation import gettext as _

from gpunex.kit import show
from gpunex.policy.models import Tier, TierPolicy
from providers.models import Application, GpuModel
from providers.weeks import HOURS_A_WEEK, minutes_of_week

State = Literal["ok", "bad", "idle"]


@dataclass(frozen=True)
class EntryFacts:
    """What is known of an entry so far; None where it is not answered, or not in a way that can be read."""

    model: GpuModel | None = None
    other_model: str = ""
    quantity: int | None = None
    host_memory_gb: int | None = None
    download_gbps: Decimal | None = None
    upload_gbps: Decimal | None = None
    always_available: bool = True
    hours_a_week: int | None = None


@dataclass(frozen=True)
class Facts:
    """What is known of an application so far."""

    entries: Sequence[EntryFacts]
    ups: bool = False
    commitment_months: int | None = None


@dataclass(frozen=True)
class Check:
    """One requirement: ``ok`` met, ``bad`` missed, ``idle`` waits for an answer or for a person's judgement."""

    state: State
    text: str
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class TierFit:
    tier: str
    checks: list[Check]

    @property
    def title(self) -> str:
        return str(Tier(self.tier).label)

    @property
    def missed(self) -> list[Check]:
        return [check for check in self.checks if check.state == "bad"]

    @property
    def waiting(self) -> list[Check]:
        return [check for check in self.checks if check.state == "idle"]


def requirements(application: Application) -> dict[str, list[Check]]:
    """Per tier, the checks of a stored application, in the active language."""
    return {fit.tier: fit.checks for fit in fits(facts_of(application))}


def facts_of(application: Application) -> Facts:
    return Facts(
        entries=[
            EntryFacts(
                model=entry.gpu_model,
                other_model=entry.other_model,
                quantity=entry.quantity,
                host_memory_gb=entry.host_memory_gb,
                download_gbps=entry.download_gbps,
                upload_gbps=entry.upload_gbps,
                always_available=entry.always_available,
                hours_a_week=minutes_of_week(entry.windows) // 60,
            )
            for entry in application.entries.select_related("gpu_model")
        ],
        ups=application.ups,
        commitment_months=application.commitment_months,
    )


def fits(facts: Facts) -> list[TierFit]:
    """Both tiers, community first."""
    policies = {policy.tier: policy for policy in TierPolicy.objects.all()}
    return [TierFit(tier, _checks(facts, policies[tier])) for tier in (Tier.COMMUNITY, Tier.ENTERPRISE)]


def entries_that_meet(facts: Facts, tier: str) -> list[int]:
    """Numbers (from 1) of the entries that alone would meet every requirement of ``tier``."""
    policy = TierPolicy.of(tier)
    return [
        number
        for number, entry in enumerate(facts.entries, start=1)
        if all(
            check.state == "ok"
            for check in _checks(Facts([entry], ups=facts.ups, commitment_months=facts.commitment_months), policy)
        )
    ]


def _checks(facts: Facts, policy: TierPolicy) -> list[Check]:
    checks = [_models(facts, policy), _memory(facts, policy), _internet(facts, policy)]
    if policy.always_available:
        checks.append(_always(facts))
    if policy.ups_required:
        checks.append(Check("ok" if facts.ups else "bad", _("UPS")))
    checks.append(_commitment(facts, policy))
    return checks


def _models(facts: Facts, policy: TierPolicy) -> Check:
    enterprise = policy.tier == Tier.ENTERPRISE

    def judge(entry: EntryFacts) -> tuple[State, str]:
        if entry.model is None:
            if not entry.other_model:
                return "idle", _("waits for its model")
            if enterprise:
                return "bad", _("%(model)s is not in the catalogue") % {"model": entry.other_model}
            return "idle", _("%(model)s is judged by a person") % {"model": entry.other_model}
        if enterprise and entry.model.klass == GpuModel.Klass.CONSUMER:
            return "bad", _("%(model)s is a consumer model") % {"model": entry.model.name}
        return "ok", ""

    text = (
        _("Datacenter or workstation models of the catalogue")
        if enterprise
        else _("Catalogue models; others case by case")
    )
    return _per_entry(facts, text, judge)


def _memory(facts: Facts, policy: TierPolicy) -> Check:
    def judge(entry: EntryFacts) -> tuple[State, str]:
        if entry.quantity is None or entry.host_memory_gb is None:
            return "idle", _("waits for its quantity and memory")
        vram_gib = entry.model.vram_gib if entry.model else 0
        needed = entry.quantity * max(policy.memory_gb_per_gpu, vram_gib)
        figures = {"have": show.cut(entry.host_memory_gb), "needed": show.cut(needed)}
        return ("ok" if entry.host_memory_gb >= needed else "bad"), _("%(have)s of %(needed)s GB") % figures

    text = _("Memory: %(gb)s GB per GPU, and at least the GPUs' VRAM") % {"gb": policy.memory_gb_per_gpu}
    return _per_entry(facts, text, judge)


def _internet(facts: Facts, policy: TierPolicy) -> Check:
    floor = Decimal(policy.network_mbps) / 1000

    def judge(entry: EntryFacts) -> tuple[State, str]:
        slow = [
            words % {"gbps": _plain(speed)}
            for words, speed in (
                (_("download %(gbps)s Gbps"), entry.download_gbps),
                (_("upload %(gbps)s Gbps"), entry.upload_gbps),
            )
            if speed is not None and speed < floor
        ]
        if slow:
            return "bad", _(", ").join(slow)
        if entry.download_gbps is None:
            return "idle", _("waits for its download speed")
        if entry.upload_gbps is None:
            return "idle", _("waits for its upload speed")
        return "ok", ""

    return _per_entry(facts, _("Internet: %(gbps)s Gbps each way") % {"gbps": _plain(floor)}, judge)


def _always(facts: Facts) -> Check:
    def judge(entry: EntryFacts) -> tuple[State, str]:
        if entry.always_available or entry.hours_a_week == HOURS_A_WEEK:
            return "ok", ""
        return "bad", _("%(hours)s of %(all)s hours a week") % {"hours": entry.hours_a_week or 0, "all": HOURS_A_WEEK}

    return _per_entry(facts, _("Around the clock"), judge)


def _commitment(facts: Facts, policy: TierPolicy) -> Check:
    text = _("Commitment of %(months)s months or more") % {"months": policy.commitment_months}
    if facts.commitment_months is None:
        return Check("idle", text)
    return Check("ok" if facts.commitment_months >= policy.commitment_months else "bad", text)


def _per_entry(facts: Facts, text: str, judge: Callable[[EntryFacts], tuple[State, str]]) -> Check:
    """The worst of the entries decides; the notes name each entry that has something to say."""
    judged = [judge(entry) for entry in facts.entries]
    states = {state for state, _note in judged}
    state: State = "bad" if "bad" in states else "ok" if states == {"ok"} else "idle"
    notes = [
        _("entry %(number)s: %(note)s") % {"number": number, "note": note}
        for number, (_state, note) in enumerate(judged, start=1)
        if note
    ]
    return Check(state, text, notes)


def _plain(value: Decimal) -> str:
    """Without trailing zeros: 0.1, 1, 2.5."""
    return f"{value.normalize():f}"
