"""A score's explanation in words, in the active language: for pages and the API."""

from datetime import timedelta

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from gpunex.kit import show
from reliability.ahead import Step
from reliability.days import Day
from reliability.losses import Loss
from reliability.score import HOUR

# Codes of stretches, as the beginning of a sentence.
_STRETCHES = {
    "silent": lambda: _("Not connected"),
    "unknown": lambda: _("Not connected: the machine was down, or its agent"),
    "reboot": lambda: _("Not connected: the host restarted"),
    "journalled": lambda: _("Not connected: its network was down"),
    "platform": lambda: _("Not connected"),
    "hidden": lambda: _("Hidden by its provider"),
    "draining": lambda: _("Draining"),
    "hung": lambda: _("The driver hung"),
    "failed": lambda: _("Failed"),
    "delisted": lambda: _("Below a quality floor"),
    "unmeasured": lambda: _("Waited for a new benchmark"),
    "kept": lambda: _("Kept by its provider"),
    "gone": lambda: _("Not found on the host"),
}
# The same as a renter reads them, short.
_REASONS = {
    "silent": lambda: _("not connected"),
    "unknown": lambda: _("not connected"),
    "reboot": lambda: _("host restarted"),
    "journalled": lambda: _("network down"),
    "platform": lambda: _("not connected"),
    "hidden": lambda: _("hidden by its provider"),
    "draining": lambda: _("draining"),
    "hung": lambda: _("driver hung"),
    "failed": lambda: _("GPU failed"),
    "delisted": lambda: _("below a quality floor"),
    "unmeasured": lambda: _("waiting for a benchmark"),
    "kept": lambda: _("kept by its provider"),
    "gone": lambda: _("GPU not found"),
    "maintenance": lambda: _("planned maintenance"),
    "outage": lambda: _("outage of the platform"),
    "excuse": lambda: _("excused by our team"),
    "paused": lambda: _("paused by our team"),
    "unadmitted": lambda: _("not admitted"),
}
_CAUSES = {
    "gpu_lost": lambda: _("a GPU failed"),
    "gpu_unavailable": lambda: _("a GPU was not available on the host"),
    "docker_failed": lambda: _("the host could not run the container"),
    "disk_full": lambda: _("the host's disk is full"),
    "host_restart": lambda: _("the host restarted"),
    "agent_shutdown": lambda: _("the host left"),
    "machine_lost": lambda: _("the host stopped answering"),
}


def component_of(loss: Loss) -> str:
    return {"uptime": _("Uptime"), "completion": _("Jobs"), "consistency": _("Consistency")}[loss.component]


def loss_in_words(loss: Loss) -> str:
    """What cost the points, in one sentence."""
    if loss.component == "completion":
        cause = _CAUSES[loss.code]() if loss.code in _CAUSES else _("it was interrupted by the machine's side")
        return _("A job ended: %(cause)s") % {"cause": cause}
    if loss.component == "consistency":
        reached = {"share": show.cut(100 * (loss.value or 0.0), 1)}
        if loss.code == "throttled":
            reasons = ", ".join(loss.throttle_reasons)
            if reasons:
                return _("A benchmark at %(share)s %% of its level: clocks were held back (%(reasons)s)") % (
                    reached | {"reasons": reasons}
                )
            return _("A benchmark at %(share)s %% of its level: clocks fell under load") % reached
        return _("A benchmark at %(share)s %% of its level") % reached
    length = show.duration(int((loss.ended_at - loss.started_at).total_seconds()))
    if loss.code == "short":
        return ngettext("%(count)s gap of less than a minute", "%(count)s gaps of less than a minute", loss.count) % {
            "count": show.cut(loss.count)
        }
    return _("%(what)s for %(length)s") % {"what": _STRETCHES[loss.code](), "length": length}


def cards_in_words(loss: Loss) -> str:
    """Which of the machine's cards it is about; empty where all of them are."""
    if not loss.cards:
        return ""
    return ngettext("GPU %(list)s", "GPUs %(list)s", len(loss.cards)) % {"list": ", ".join(map(str, loss.cards))}


def step_in_words(step: Step) -> str:
    """What to do, in one sentence."""
    if step.code == "back":
        what = {
            "hidden": lambda: _("Show it to renters again"),
            "draining": lambda: _("Let it take work again"),
            "hung": lambda: _("Restart the host: its driver hangs"),
            "failed": lambda: _("Repair or replace the failed GPU"),
            "delisted": lambda: _("Bring the GPU above the quality floor again"),
            "unmeasured": lambda: _("Let the GPU be measured"),
            "kept": lambda: _("Give the GPU to the platform again"),
            "gone": lambda: _("Bring the missing GPU back"),
        }.get(step.state, lambda: _("Connect the machine again"))()
        return ngettext(
            "%(what)s, and stay available for %(days)s day",
            "%(what)s, and stay available for %(days)s days",
            step.days,
        ) % {"what": what, "days": step.days}
    if step.code == "stay":
        return ngettext(
            "%(days)s more day available in all declared hours",
            "%(days)s more days available in all declared hours",
            step.days,
        ) % {"days": step.days}
    if step.code == "jobs":
        return ngettext(
            "%(count)s more job that is not interrupted", "%(count)s more jobs that are not interrupted", step.count
        ) % {"count": step.count}
    if step.code == "cooling":
        return ngettext(
            "Better cooling: %(count)s benchmark of each GPU without held-back clocks",
            "Better cooling: %(count)s benchmarks of each GPU without held-back clocks",
            step.count,
        ) % {"count": step.count}
    return ngettext(
        "%(count)s benchmark of each GPU at its first level",
        "%(count)s benchmarks of each GPU at their first level",
        step.count,
    ) % {"count": step.count}


def reason_of(code: str) -> str:
    """A reason as a renter reads it, short."""
    return _REASONS[code]() if code in _REASONS else code


def day_in_words(day: Day) -> str:
    """One day as the title of its bar and as a line of the table: what was kept of it, and why not all."""
    if day.state == "none":
        return _("not declared")
    said = [_listed(day.missing)] if day.missing else []
    if day.excused:
        said.append(_("excused: %(reasons)s") % {"reasons": _listed(day.excused)})
    if day.state in ("ok", "excused") and not day.missing:
        said.insert(0, _("available as declared"))
    return _("; ").join(said) or _("available as declared")


def _listed(reasons: tuple[tuple[str, float], ...]) -> str:
    """ "2 h not connected, 1 h hidden by its provider"; what takes less than a minute is left out beside longer ones."""
    together: dict[str, float] = {}
    for code, hours in reasons:
        together[reason_of(code)] = together.get(reason_of(code), 0.0) + hours
    shown = {text: hours for text, hours in together.items() if hours * 60 >= 1} or together
    return _(", ").join(
        _("%(length)s %(reason)s") % {"length": show.duration(_seconds(hours)), "reason": text}
        for text, hours in shown.items()
    )


def _seconds(hours: float) -> int:
    return int(timedelta(microseconds=hours * HOUR).total_seconds())
