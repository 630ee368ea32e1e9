"""The provider guide: public, in both languages, every figure from the rows an admin edits."""

from django.conf import settings
from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.translation import get_language
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from gpunex.policy.models import Policy, Tier, TierPolicy
from payouts.bank import details
from providers.models import GpuModel
from providers.places import country_name


@login_not_required
@require_safe
def guide(request: HttpRequest) -> HttpResponse:
    language = "ar" if (get_language() or "").startswith("ar") else "en"
    policy = Policy.load()
    community, enterprise = (_figures(TierPolicy.of(tier)) for tier in (Tier.COMMUNITY, Tier.ENTERPRISE))
    return render(
        request,
        f"guide/{language}.html",
        {
            "nav": "guide",
            "policy": policy,
            "bank_countries": sorted(country_name(code) for code in details.served_countries(policy)),
            "community": community,
            "enterprise": enterprise,
            "tiers": [community, enterprise],
            "sections": [
                ("overview", _("Overview")),
                ("requirements", _("System requirements")),
                ("applying", _("Applying as a provider")),
                ("agent", _("Installing the agent")),
                ("benchmarks", _("Benchmarks")),
                ("pricing", _("Prices")),
                ("tiers", _("Tiers")),
                ("earnings", _("Earnings")),
                ("reliability", _("Reliability score")),
            ],
            "models": GpuModel.objects.filter(active=True),
            "docker": policy.docker_least,
            "toolkit": policy.toolkit_least,
            "cuda": policy.cuda_least,
            "runc": " / ".join(policy.runc_least.split()),
            "line": f"curl -fsSL {settings.PUBLIC_URL}/agent | bash",
        },
    )


def _figures(policy: TierPolicy) -> dict[str, object]:
    """A tier's numbers in the units that people read: Gbps and per cent."""
    return {
        "policy": policy,
        "gbps": f"{policy.network_mbps / 1000:g}",
        "fee": f"{policy.fee_bps / 100:g}",
        "keeps": f"{(10_000 - policy.fee_bps) / 100:g}",
        "uptime": f"{policy.uptime_floor_bps / 100:g}",
        "benchmark": f"{policy.benchmark_floor_bps / 100:g}",
    }
