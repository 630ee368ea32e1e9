"""How machines and GPUs stand, in words: the state as it is shown, the reason, and what to do."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from gpunex.kit import show
from gpunex.kit.templatetags import ui
from providers.fleet import Card, Hidden, Host, Standing
from providers.inventory import health_in_words
from providers.models import Gpu
from reliability import floors

CELLS = {
    Standing.RENTED: "busy",
    Standing.FREE: "free",
    Standing.UNPRICED: "free",
    Standing.DELISTED: "warn",
    Standing.FAILED: "bad",
    Standing.OFFLINE: "bad",
}
# In the order in which a legend and a label name them.
ORDER = (
    Standing.RENTED,
    Standing.FREE,
    Standing.UNPRICED,
    Standing.MEASURING,
    Standing.WAITING,
    Standing.HIDDEN,
    Standing.UNADMITTED,
    Standing.KEPT,
    Standing.DELISTED,
    Standing.FAILED,
    Standing.OFFLINE,
)


@dataclass(frozen=True)
class Said:
    """A state: its shape (ok, busy, info, warn, bad, idle), its words, the reason, and what to do about it."""

    state: str
    text: str
    reason: str = ""
    todo: str = ""


def counted(standing: Standing, count: int) -> str:
    """ "5 rented": each standing with its number, so that every language can agree them."""
    texts = {
        Standing.RENTED: lambda: ngettext("%(count)s rented", "%(count)s rented", count),
        Standing.FREE: lambda: ngettext("%(count)s free", "%(count)s free", count),
        Standing.UNPRICED: lambda: ngettext("%(count)s without a price", "%(count)s without a price", count),
        Standing.MEASURING: lambda: ngettext("%(count)s being measured", "%(count)s being measured", count),
        Standing.WAITING: lambda: ngettext("%(count)s not measured yet", "%(count)s not measured yet", count),
        Standing.HIDDEN: lambda: ngettext("%(count)s hidden", "%(count)s hidden", count),
        Standing.UNADMITTED: lambda: ngettext(
            "%(count)s waiting for admission", "%(count)s waiting for admission", count
        ),
        Standing.KEPT: lambda: ngettext("%(count)s kept by you", "%(count)s kept by you", count),
        Standing.DELISTED: lambda: ngettext("%(count)s delisted", "%(count)s delisted", count),
        Standing.FAILED: lambda: ngettext("%(count)s failed", "%(count)s failed", count),
        Standing.OFFLINE: lambda: ngettext("%(count)s offline", "%(count)s offline", count),
    }
    return texts[standing]() % {"count": count}


def counts_in_words(host: Host, *, without: Iterable[Standing] = ()) -> str:
    """ "5 rented, 3 free"."""
    return _(", ").join(
        counted(standing, host.counts[standing])
        for standing in ORDER
        if host.counts[standing] and standing not in without
    )


def cells_of(host: Host) -> list[str]:
    return [CELLS.get(card.standing, "hidden") for card in host.cards]


def models_of(host: Host) -> SafeString:
    """ "8 × H100 80GB", several joined."""
    return format_html_join(
        _(", "), '<bdi dir="ltr">{} × {}</bdi>', ((count, name) for name, count in host.models.items())
    )


def host_said(host: Host, at: datetime) -> Said:
    """The machine's state: what is wrong before what is merely so."""
    machine, counts = host.machine, host.counts
    if machine.retired_at is not None:
        return Said("idle", _("Retired on %(day)s") % {"day": show.moment(machine.retired_at, "date")})
    if machine.last_seen_at is None:
        return Said("idle", _("Not connected yet"), todo=_("Start the agent on the host; it connects by itself."))
    if not host.connected:
        return _offline(host, at)
    rented = counts_in_words(host, without=set(ORDER) - {Standing.RENTED})
    for hidden, said in _HIDDEN.items():
        if host.hidden == hidden:
            state, text, reason, todo = said()
            return Said(
                state, _("%(state)s, %(rented)s") % {"state": text, "rented": rented} if rented else text, reason, todo
            )
    if not host.cards:
        return Said("warn", _("Connected, no GPU found"), todo=_("Check that nvidia-smi lists the cards on the host."))
    for standing, state in ((Standing.FAILED, "bad"), (Standing.DELISTED, "warn"), (Standing.UNADMITTED, "warn")):
        if counts[standing]:
            return Said(state, _("Connected, %(counts)s") % {"counts": counted(standing, counts[standing])})
    return Said("ok", _("Connected, %(counts)s") % {"counts": counts_in_words(host)})


def _offline(host: Host, at: datetime) -> Said:
    machine = host.machine
    since = machine.last_seen_at
    today = since.astimezone(UTC).date() == at.astimezone(UTC).date()
    text = said(_("Offline since {time}"), time=ui.when(since, "time" if today else "full"))
    reason = _("Last heard from %(ago)s. Its GPUs are hidden from renters and nothing is billed for this time.") % {
        "ago": show.distance(since, at)
    }
    if machine.lost_at is not None:
        reason += " " + _("It has been silent for so long that rentals on it have ended.")
    return Said(
        "bad",
        text,
        reason,
        _(
            "Check power and network of the host, then that the agent runs. It reconnects by itself; nothing has to be installed again."
        ),
    )


_HIDDEN: dict[Hidden, Any] = {
    Hidden.PAUSED: lambda: (
        "warn",
        _("Paused by our team"),
        _("Its GPUs are kept from new renters until we have looked into something."),
        _("You have mail about it. Answer there."),
    ),
    Hidden.HUNG: lambda: (
        "bad",
        _("Connected, the driver does not answer"),
        _("The NVIDIA driver of the host hangs, so nothing can be started on its GPUs."),
        _("Restart the host. If it happens again, update the driver."),
    ),
    Hidden.UNSETTLED: lambda: (
        "warn",
        _("Connected, its connection keeps breaking"),
        _(
            "It broke off three times within 30 minutes. Its offers wait until it has been steady again; rentals that run go on."
        ),
        _("The gaps below tell network and restarts apart."),
    ),
    Hidden.SIMULATED: lambda: (
        "idle",
        _("Simulated, not offered"),
        _("This platform keeps simulated machines out of the marketplace."),
        "",
    ),
    Hidden.DRAINING: lambda: (
        "info",
        _("Draining"),
        _("It takes no new work. What runs goes on to its end."),
        _("Take new work again as soon as the host is ready."),
    ),
    Hidden.MAINTENANCE: lambda: (
        "info",
        _("In planned maintenance"),
        _(
            "Its GPUs are kept from new renters until the announced end. With notice and within the month's budget it costs no points."
        ),
        _("It is offered again by itself; cancel nothing and hide nothing."),
    ),
    Hidden.PROVIDER: lambda: (
        "idle",
        _("Hidden by you"),
        _("Its GPUs are hidden from renters. The declared hours run on, so uptime counts as before."),
        _("Show it again to rent it out."),
    ),
    Hidden.HOURS: lambda: (
        "idle",
        _("Outside its hours"),
        _("The schedule does not offer it now."),
        _("Offer more hours under Availability; more hours count at once."),
    ),
}


def card_said(card: Card, host: Host) -> Said:
    """The GPU's state, with reason and remedy."""
    gpu = card.gpu
    if card.standing == Standing.HIDDEN and host.hidden is not None:
        _state, text, reason, todo = _HIDDEN[host.hidden]()
        return Said("idle", _("Hidden"), f"{text}. {reason}" if reason else text, todo)
    if card.standing == Standing.DELISTED:
        why, todo = floors.in_words(gpu.delisted_reason)
        return Said("warn", _("Delisted"), why, todo)
    if card.standing == Standing.FAILED:
        return Said("bad", _("Failed"), health_in_words(gpu) or _("The agent reports it as failed."))
    if card.standing == Standing.UNADMITTED:
        if gpu.variant is None:
            return Said(
                "warn", _("Not in the catalogue"), _("We do not know this card yet. Our team adds it or answers you.")
            )
        return Said(
            "warn",
            _("Waiting for admission"),
            _(
                "The approved application does not cover this card: another model, or more than the approved number. Our team admits it or answers you."
            ),
        )
    said = {
        Standing.KEPT: Said("idle", _("Kept by you"), _("The platform does not use it and renters do not see it.")),
        Standing.OFFLINE: Said("bad", _("Offline"), _("Its machine does not answer.")),
        Standing.RENTED: Said("busy", _("Rented")),
        Standing.MEASURING: Said("busy", _("Being measured"), _("A benchmark runs. It takes a few minutes.")),
        Standing.WAITING: Said(
            "info", _("Waiting for its first benchmark"), _("It starts by itself within minutes of connecting.")
        ),
        Standing.UNPRICED: Said(
            "warn", _("No price"), todo=_("Set a price for %(model)s; then it is offered.") % {"model": card.model_name}
        ),
        Standing.FREE: Said("ok", _("Free"), _("Offered to renters now.")),
    }[card.standing]
    if gpu.health == Gpu.Health.DEGRADED:
        return Said(
            "warn",
            _("%(state)s, degraded") % {"state": said.text},
            health_in_words(gpu) or _("The driver reported an error on it."),
            said.todo,
        )
    return said


def named(host: Host) -> SafeString:
    return ui.host(host.machine.name)


def said(text: str, **fields: Any) -> SafeString:
    """``text`` with its {fields} filled in, markup kept, the rest escaped."""
    return format_html(text, **fields)
