"""The factors of a rank in words, for every page that shows why an offer stands where it does."""

from typing import Any

from django.utils.translation import gettext as _

from marketplace import ranking
from marketplace.models import Listing


def factors_of(listing: Listing) -> list[dict[str, Any]]:
    """Rows of the part ``score``: what, note, share of the most, points and the most."""
    points = (listing.rank_factors or {}).get("points") or {}
    market = (listing.rank_factors or {}).get("market") or {}
    evidence = (
        _("against %(count)s prices rented in 7 days") % {"count": market.get("sample", 0)}
        if market.get("evidence") == "rented"
        else _("against the prices asked now")
    )
    words = {
        "reliability": (_("Reliability"), _("score, from 80 to 100")),
        "price": (_("Price"), evidence),
        "performance": (_("Performance"), _("measured, from 80 to 100 % of its model")),
        "commitment": (_("Commitment"), _("12 months earns all")),
        "tier": (_("Tier"), _("enterprise 7, community 3")),
        "freshness": (_("Freshness"), _("measured within 6 hours earns all")),
    }
    return [
        {
            "name": name,
            "what": what,
            "note": note,
            "share": points.get(name, 0) / ranking.MOST[name],
            "points": f"{points.get(name, 0):.1f}",
            "of": ranking.MOST[name],
        }
        for name, (what, note) in words.items()
        if points
    ]
