"""Telling an organisation what happened: a notice in its dashboard and a mail to its owners, in each reader's language.

An app declares its events as ``Event`` constants in its own ``notices.py`` and calls ``notify`` inside the operation's
transaction, so that the mail exists exactly if the change does. The key makes a repeat harmless.

``data`` is JSON: a name ending in ``_micro`` is shown as an amount of USDC, one ending in ``_at`` (ISO 8601) as a time
in UTC. What must not be stored in clear text (a token) goes in ``secret``: it reaches the mail, which is encrypted and
blanked once sent, and never the notice.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.conf import settings
from django.template.loader import render_to_string
from django.utils import translation
from django.utils.functional import Promise

from gpunex.accounts.models import Membership, Notice, Organisation
from gpunex.kit import show
from gpunex.outbox import mail

Text = str | Promise


@dataclass(frozen=True)
class Event:
    """One thing that can happen, in words: ``subject`` and ``paragraphs`` are gettext strings with ``%(name)s`` fields."""

    name: str
    subject: Text
    paragraphs: tuple[Text, ...] = ()
    action: Text = ""
    path: str = "/"  # may hold {name} fields of data
    command: str = ""  # a line to copy into a terminal; may hold %(name)s fields, of secret too
    state: str = "info"  # ok, warn, bad or info
    # A value of data that is a code, by its name, and what each code says: in the language of whoever reads it.
    words: Mapping[str, Mapping[str, Text]] = field(default_factory=dict)
    registry: dict[str, "Event"] = field(default_factory=lambda: EVENTS, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.registry.setdefault(self.name, self) is not self:
            raise ValueError(f"two events are called {self.name}")


EVENTS: dict[str, Event] = {}


ISOLATE, POP = "\N{LEFT-TO-RIGHT ISOLATE}", "\N{POP DIRECTIONAL ISOLATE}"


def shown(data: dict[str, Any]) -> dict[str, Any]:
    """``data`` as it reads in the active language: amounts and times formatted, everything else as it is.

    Inside Arabic a number with its unit is an island, or the sentence around it would reorder it.
    """
    result = dict(data)
    for name, value in data.items():
        if name.endswith("_micro") and isinstance(value, int):
            result[name] = _island(f"{show.usdc(value)} USDC")
        elif name.endswith("_at") and isinstance(value, str):
            # In Arabic its month is Arabic: the day stands outside of the island, which ``show`` makes for the time.
            result[name] = show.moment(datetime.fromisoformat(value))
    return result


def _filled(event: Event, data: dict[str, Any]) -> dict[str, Any]:
    """``shown``, with the event's codes in words; what is no code of it stays as it was written."""
    codes = {name: str(words.get(data[name], data[name])) for name, words in event.words.items() if name in data}
    return shown(data) | codes


def _island(text: str) -> str:
    return f"{ISOLATE}{text}{POP}" if translation.get_language_bidi() else text


def recipients(organisation: Organisation) -> Iterable[Any]:
    """The users who get the organisation's mail: its owners."""
    return [
        membership.user
        for membership in Membership.objects.filter(
            organisation=organisation, role=Membership.Role.OWNER, user__is_active=True
        )
        .select_related("user")
        .order_by("pk")
    ]


def notify(
    *,
    organisation: Organisation,
    event: Event,
    key: str,
    at: datetime,
    data: dict[str, Any] | None = None,
    secret: dict[str, str] | None = None,
    by_mail: bool = True,
) -> None:
    """Tell ``organisation``. Precondition: inside a transaction. The same key again tells nothing twice.

    Without ``by_mail`` only the dashboard tells it: for what others could make happen a thousand times.
    """
    data = data or {}
    _notice, made = Notice.objects.get_or_create(
        key=key, defaults={"organisation": organisation, "event": event.name, "data": data, "created_at": at}
    )
    if not made or not by_mail:
        return
    for user in recipients(organisation):
        with translation.override(user.language):
            subject, text, html = render(event, data=data, secret=secret or {})
        mail.queue(
            key=f"{key}:{user.pk}", event=event.name, to=user.email, subject=subject, text=text, html=html, at=at
        )


def render(event: Event, *, data: dict[str, Any], secret: dict[str, str]) -> tuple[str, str, str]:
    """Subject, text and HTML of an event's mail in the active language."""
    fields = _filled(event, data) | secret
    subject = str(event.subject) % fields
    context = {
        "subject": subject,
        "paragraphs": [text for paragraph in event.paragraphs if (text := str(paragraph) % fields)],
        "command": event.command % fields if event.command else "",
        "action": str(event.action),
        "url": settings.PUBLIC_URL + event.path.format(**data),
        "site": settings.PUBLIC_URL,
        "state": event.state,
        "language": translation.get_language(),
        "direction": "rtl" if translation.get_language_bidi() else "ltr",
    }
    return subject, render_to_string("mail/event.txt", context), render_to_string("mail/event.html", context)


def in_words(notice: Notice) -> dict[str, Any]:
    """A notice for a page, in the active language: ``subject``, ``paragraphs``, ``action``, ``path``, ``state``, ``at``."""
    event = EVENTS.get(notice.event)
    if event is None:  # an event of an older version: its name is better than nothing
        return {
            "subject": notice.event,
            "paragraphs": [],
            "action": "",
            "path": "",
            "state": "info",
            "at": notice.created_at,
        }
    fields = _filled(event, notice.data)
    return {
        "subject": str(event.subject) % fields,
        "paragraphs": _without_secrets(event.paragraphs, fields),
        "action": str(event.action),
        "path": event.path.format(**notice.data),
        "state": event.state,
        "at": notice.created_at,
    }


def _without_secrets(paragraphs: tuple[Text, ...], fields: dict[str, Any]) -> list[str]:
    """The paragraphs that ``fields`` can fill in: one that holds a secret went into the mail alone."""
    filled = []
    for paragraph in paragraphs:
        with suppress(KeyError):
            filled.append(str(paragraph) % fields)
    return [text for text in filled if text]
