"""Pages of the embedded mode only: the demonstration's mailbox and the parts of the design. Elsewhere these addresses do not exist."""

import email
import email.policy
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from django import forms
from django.conf import settings
from django.contrib.auth.decorators import login_not_required
from django.core.paginator import Paginator
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from django.views.decorators.clickjacking import xframe_options_sameorigin
from django.views.decorators.http import require_safe

from gpunex.kit import svg
from gpunex.kit.show import day_text

SHOWN = 50


def _read(path: Path) -> dict[str, Any]:
    message = email.message_from_bytes(path.read_bytes(), policy=email.policy.default)
    text, html = message.get_body(("plain",)), message.get_body(("html",))
    return {
        "name": path.stem,
        "to": message["To"],
        "subject": message["Subject"],
        "at": message["Date"].datetime,
        "text": text.get_content() if text else "",
        "html": html.get_content() if html else "",
    }


def _folder() -> Path:
    if not settings.EMBEDDED:
        raise Http404
    return Path(settings.MAIL_DIR)


@login_not_required
@require_safe
def mailbox(request: HttpRequest) -> HttpResponse:
    """GET /dev/mail: the mails that would have gone out, the newest first; ``?to=`` filters by address."""
    to = request.GET.get("to", "").strip().lower()
    mails = []
    for path in sorted(_folder().glob("*.eml"), reverse=True):
        read = _read(path)
        if not to or to == str(read["to"]).lower():
            mails.append(read)
        if len(mails) == SHOWN:
            break
    return render(request, "dev/mailbox.html", {"mails": mails, "to": to})


@login_not_required
@require_safe
@xframe_options_sameorigin
def mail(request: HttpRequest, name: str) -> HttpResponse:
    """GET /dev/mail/<name>: one mail."""
    path = _folder() / f"{name}.eml"
    if not path.is_file():
        raise Http404
    return render(request, "dev/mail.html", {"mail": _read(path)})


class _SampleForm(forms.Form):
    email = forms.EmailField(label=_("Email"))
    price = forms.DecimalField(label=_("Price"), min_value=0.01)
    region = forms.ChoiceField(label=_("Region"), choices=[("EU", _("Europe")), ("", _("Anywhere"))], required=False)
    cycle = forms.ChoiceField(
        label=_("Cycle"), choices=[("week", _("Weekly")), ("month", _("Monthly"))], widget=forms.RadioSelect
    )
    company = forms.CharField(label=_("Company"), required=False)
    restart = forms.BooleanField(label=_("Restart elsewhere if the machine fails"), required=False)
    notes = forms.CharField(label=_("Maintenance notes"), required=False, widget=forms.Textarea(attrs={"rows": 3}))


@login_not_required
@require_safe
def components(request: HttpRequest) -> HttpResponse:
    """GET /dev/components: every part of the design in its states; ``?front=provider`` inside the provider's band."""
    _folder()
    provider = request.GET.get("front") == "provider"
    at = datetime(2026, 10, 14, 14, 5, tzinfo=UTC)
    trend = [1.98, 2.0, 1.97, 2.02, 2.05, 2.03, 2.08, 2.12, 2.1, 2.15, 2.13, 2.18, 2.2, 2.17, 2.21]
    context: dict[str, Any] = {
        "shell": "shell/provider.html" if provider else "shell/renter.html",
        "nav": "overview" if provider else "market",
        "at": at,
        "before": at - timedelta(minutes=3),
        "form": _SampleForm({"price": "abc", "cycle": "week", "restart": "on"}),
        "trend": trend,
        "shares": [(0.54, "v1"), (0.24, "v2"), (0.12, "v3")],
        "day_states": ["none"] * 12 + ["ok"] * 28 + ["part", "down", "down"] + ["ok"] * 17 + ["excused"] + ["ok"] * 29,
        "gpus": ["busy", "busy", "busy", "free", "free", "hidden", "warn", "bad"],
        "earned": svg.Chart(
            values=[320, 335, 348, 330, 352, 361, 344, 258, 331, 349, 365, 211],
            label=gettext("Earned per day, 12 days"),
            ticks=["3", "8", "14"],
            titles=["3: 320.00", "4: 335.00", "5: 348.00"],
            unfinished=True,
        ),
        "prices": svg.Chart(values=trend, label=gettext("Median price over 15 days"), ticks=["30", "7", "14"]),
        "score": [
            {"what": gettext("Uptime"), "share": 0.9968, "points": "49.84", "of": "50"},
            {"what": gettext("Jobs completed"), "share": 0.9927, "points": "29.78", "of": "30"},
            {"what": gettext("Benchmark consistency"), "share": 0.984, "points": "19.68", "of": "20"},
        ],
        "score_total": {"what": gettext("Reliability"), "points": "99.30", "of": "100"},
        "steps": [
            {"state": "done", "title": gettext("Agent connected"), "note": gettext("2 GPUs found"), "when": "14:01:12"},
            {"state": "now", "title": gettext("Benchmarks"), "note": gettext("test 3 of 6")},
            {"state": "later", "title": gettext("Ready to price")},
        ],
        "log": "step 12430  loss 1.4099\nstep 12440  loss 1.4054\nwarning: 3 shards slower than 200 MB/s\nstep 12450  loss 1.4041",
        "page": Paginator(range(1204), 50).get_page(2),
    }
    if provider:
        context |= {
            "gauges": [
                {"label": gettext("Earning now, after fee"), "value": "11.12", "unit": gettext("USDC per hour")},
                {"label": gettext("Rented"), "value": "9", "unit": gettext("of %(all)s") % {"all": 18}},
                {"label": gettext("Free"), "value": "4"},
                {"label": gettext("Offline"), "value": "4", "state": "bad", "word": gettext("4 GPUs")},
                {"label": gettext("Delisted"), "value": "1", "state": "warn", "word": gettext("below floor")},
                {"label": gettext("Reliability"), "value": "99.30"},
                {"label": gettext("Next payout"), "value": day_text(at.date(), year=False), "unit": gettext("Monday")},
            ],
            "tabs_count": {"machines": 2},
        }
    return render(request, "dev/components.html", context)
