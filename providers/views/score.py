"""The reliability score as rows that sum, for the overview and the Performance tab."""

from typing import Any

from django.utils.translation import gettext as _

from gpunex.kit import show
from reliability import score as formula

PARTS = (("uptime", formula.UPTIME), ("completion", formula.COMPLETION), ("consistency", formula.CONSISTENCY))


def score_rows(parts: Any, notes: dict[str, str] | None = None) -> list[dict[str, Any]]:
    """The three parts with their points; ``parts`` has ``uptime``, ``completion``, ``consistency`` from 0 to 1, or is None.

    Points are cut like everything that is a score. A cut total may be a hundredth more than the cut parts add up to, so the
    hundredth goes to the part that lost most by cutting: what is shown sums.
    """
    if parts is None:
        return []
    names = {"uptime": _("Uptime"), "completion": _("Jobs completed"), "consistency": _("Benchmark consistency")}
    exact = {name: 100 * weight * getattr(parts, name) for name, weight in PARTS}
    hundredths = {name: int(points * 100 + 1e-6) for name, points in exact.items()}
    missing = int(sum(exact.values()) * 100 + 1e-6) - sum(hundredths.values())
    for name in sorted(exact, key=lambda name: hundredths[name] - exact[name] * 100)[:missing]:
        hundredths[name] += 1
    return [
        {
            "what": names[name],
            "note": (notes or {}).get(name, ""),
            "share": getattr(parts, name),
            "points": show.cut(hundredths[name] / 100, 2),
            "of": show.cut(100 * weight),
            "loss": show.cut((round(10_000 * weight) - hundredths[name]) / 100, 2),
        }
        for name, weight in PARTS
    ]
