"""When machines are offered: the hours in force, those to come, and the weekly editor."""

from collections.abc import Sequence
from datetime import UTC, datetime, time, timedelta
from itertools import pairwise
from typing import Any
from uuid import UUID

from django import forms
from django.contrib import messages
from django.core.paginator import Paginator
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.dateformat import format as date_format
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as _lazy
from django.utils.translation import ngettext
from django.views.decorators.http import require_http_methods, require_safe

from gpunex.desk import Desk
from gpunex.kit import show
from gpunex.kit.refusals import Refusal
from gpunex.kit.spans import Span, common, seconds
from gpunex.kit.time import zone, zone_names
from gpunex.policy.models import Tier, TierPolicy
from marketplace import listings
from providers import declarations
from providers.declarations import declare_schedule
from providers.fleet import Host
from providers.forms import ALWAYS, PRESETS, WEEKLY, EntryForm
from providers.models import Machine, Schedule
from providers.schedules import declared_spans
from providers.views import words
from providers.views.access import provider_page
from providers.weeks import HOURS_A_WEEK, hours_of_windows, minutes_of_week, windows_of_hours

A_PAGE = 25
DAYS = 7


@provider_page
@require_safe
def availability(request: HttpRequest) -> HttpResponse:
    """Every machine with the hours in force and those that follow."""
    desk: Desk = request.desk
    page = Paginator(desk.fleet.hosts, A_PAGE).get_page(request.GET.get("page"))
    return render(
        request,
        "providers/availability.html",
        {
            "nav": "availability",
            "page": page,
            "rows": [_row(host, desk.at) for host in page],
            "enterprise": desk.provider.tier == Tier.ENTERPRISE and TierPolicy.of(Tier.ENTERPRISE).always_available,
        },
    )


def _row(host: Host, at: datetime) -> dict[str, Any]:
    following = _following(host.machine.schedules.all(), at)
    return {
        "host": host,
        "machine": host.machine,
        "models": words.models_of(host),
        "now": in_words(host.schedule),
        "zone": host.schedule.timezone if host.schedule else "UTC",
        "next": following[-1] if following else None,
        "next_words": in_words(following[-1]) if following else "",
        "said": words.host_said(host, at),
    }


def in_words(version: Schedule | None) -> str:
    """ "around the clock", "56 hours a week"."""
    if version is None or version.always:
        return _("around the clock")
    hours = minutes_of_week(version.windows) / 60
    return ngettext("%(hours)s hour a week", "%(hours)s hours a week", int(hours)) % {"hours": _hours(hours)}


def _hours(hours: float) -> str:
    return show.cut(hours, 0 if hours == int(hours) else 1)


def _following(versions: Sequence[Schedule], at: datetime) -> list[Schedule]:
    ordered = sorted(
        (version for version in versions if version.effective_from > at), key=lambda v: (v.effective_from, v.pk)
    )
    return list({version.effective_from: version for version in ordered}.values())


class HoursForm(forms.Form):
    """The week's hours: around the clock, or boxes of whole hours in a zone; as the application's form has them."""

    availability = forms.ChoiceField(
        label=_lazy("Offered"),
        choices=[(ALWAYS, _lazy("Around the clock")), (WEEKLY, _lazy("Weekly schedule"))],
        widget=forms.RadioSelect,
        error_messages={"required": _lazy("Choose when the GPUs are available.")},
    )
    timezone = forms.CharField(
        label=_lazy("Time zone"),
        max_length=64,
        widget=forms.TextInput(attrs={"list": "zones", "autocomplete": "off", "data-ltr": True}),
        error_messages={"required": _lazy("Write the time zone of these hours, like Asia/Amman.")},
    )
    hours = forms.TypedMultipleChoiceField(
        label=_lazy("Weekly hours"),
        choices=[(str(hour), str(hour)) for hour in range(HOURS_A_WEEK)],
        coerce=int,
        required=False,
        error_messages={"invalid_choice": _lazy("One of the hours is not an hour of the week.")},
    )

    clean_timezone = EntryForm.clean_timezone
    chosen_hours = EntryForm.chosen_hours
    week = EntryForm.week

    def clean(self) -> dict[str, Any]:
        data = super().clean() or {}
        if data.get("availability") == WEEKLY and not data.get("hours") and "hours" not in self.errors:
            self.add_error("hours", _("Choose at least one hour, or “Around the clock”."))
        return data


@provider_page
@require_http_methods(["GET", "HEAD", "POST"])
def machine_hours(request: HttpRequest, public_id: UUID) -> HttpResponse:
    """One machine's hours. A preset fills the boxes and saves nothing yet."""
    desk: Desk = request.desk
    host = next((host for host in desk.fleet.hosts if host.machine.public_id == public_id), None)
    if host is None:
        raise Http404
    if request.method != "POST":
        return _editor(request, host, HoursForm(initial=_typed(_latest(host, desk.at))))
    if request.POST.get("preset") in PRESETS:
        hours = [str(hour) for hour in PRESETS[request.POST["preset"]]]
        return _editor(
            request,
            host,
            HoursForm(initial={"availability": WEEKLY, "timezone": request.POST.get("timezone", ""), "hours": hours}),
        )
    form = HoursForm(request.POST)
    if form.is_valid():
        data = form.cleaned_data
        always = data["availability"] == ALWAYS
        try:
            written = declare_schedule(
                machine=host.machine,
                timezone=data["timezone"],
                always=always,
                windows=[] if always else windows_of_hours(data["hours"]),
                by=request.user,
                at=desk.at,
            )
        except Refusal as refusal:
            form.add_error(None, str(refusal))
        else:
            listings.refresh(at=desk.at, machines=[host.machine])
            messages.success(request, _saved(host.machine, written, desk.at))
            return redirect("providers:availability_of", public_id)
    return _editor(request, host, form, status=422)


def _latest(host: Host, at: datetime) -> Schedule | None:
    """What is declared in the end: the last version to come, else the one in force."""
    following = _following(host.machine.schedules.all(), at)
    return following[-1] if following else host.schedule


def _typed(version: Schedule | None) -> dict[str, Any]:
    if version is None:
        return {"availability": ALWAYS, "timezone": "UTC", "hours": []}
    return {
        "availability": ALWAYS if version.always else WEEKLY,
        "timezone": version.timezone,
        "hours": [str(hour) for hour in sorted(hours_of_windows(version.windows))],
    }


def _saved(machine: Machine, written: Sequence[Schedule], at: datetime) -> str:
    name = {"machine": machine.name}
    if not written:
        return _("%(machine)s has these hours already. Nothing was changed.") % name
    last = written[-1].effective_from
    if last <= at:
        return _("The new hours of %(machine)s count from now on.") % name
    text = _("The new hours of %(machine)s count from %(time)s. Until then hours that you took away are still offered.")
    return text % (name | {"time": show.moment(last)})


def _editor(request: HttpRequest, host: Host, form: HoursForm, *, status: int = 200) -> HttpResponse:
    desk: Desk = request.desk
    following = _following(host.machine.schedules.all(), desk.at)
    latest = _latest(host, desk.at)
    zone_name = latest.timezone if latest else "UTC"
    context = {
        "nav": "availability",
        "host": host,
        "machine": host.machine,
        "models": words.models_of(host),
        "form": form,
        "zones": zone_names(),
        "now": in_words(host.schedule),
        "now_zone": host.schedule.timezone if host.schedule else "UTC",
        "zone": zone_name,
        "following": [{"version": version, "words": in_words(version)} for version in following],
        "week": next_week(host, zone_name, desk.at),
        "narrower_from": declarations.next_midnight(zone_name, desk.at),
        "enterprise": desk.provider.tier == Tier.ENTERPRISE and TierPolicy.of(Tier.ENTERPRISE).always_available,
        "presets": [("nights", _("Nights")), ("weekends", _("Weekends")), ("clear", _("Clear"))],
    }
    return render(request, "providers/availability_machine.html", context, status=status)


def next_week(host: Host, zone_name: str, at: datetime) -> list[dict[str, Any]]:
    """The coming seven days as they will be offered, in the zone of the hours, each cut at its own midnights."""
    local = zone(zone_name)
    today = at.astimezone(local).date()
    midnights = [
        datetime.combine(today + timedelta(days=day), time(), tzinfo=local).astimezone(UTC) for day in range(DAYS + 1)
    ]
    spans = declared_spans(host.machine.schedules.all(), midnights[0], midnights[-1])
    rows = []
    for number, (start, end) in enumerate(pairwise(midnights)):
        inside = common(spans, [(start, end)])
        rows.append(
            {
                "day": today + timedelta(days=number),
                "weekday": date_format(today + timedelta(days=number), "l"),
                "said": _spans_in_words(inside, start, end, local),
                "hours": _hours(seconds(inside) / 3600),
                "shares": _shares(inside, start, end),
            }
        )
    return rows


def _spans_in_words(inside: Sequence[Span], start: datetime, end: datetime, local: Any) -> str:
    if not inside:
        return _("not offered")
    if inside == [(start, end)]:
        return _("all day")
    return _(", ").join(
        f"{first.astimezone(local):%H:%M}–{'24:00' if last == end else f'{last.astimezone(local):%H:%M}'}"
        for first, last in inside
    )


def _shares(inside: Sequence[Span], start: datetime, end: datetime) -> list[tuple[float, str]]:
    """Gaps and stretches in turn, as shares of the day, for ``svg.fills``."""
    whole, at, shares = (end - start).total_seconds(), start, []
    for first, last in inside:
        shares += [((first - at).total_seconds() / whole, "track"), ((last - first).total_seconds() / whole, "v1")]
        at = last
    return shares
