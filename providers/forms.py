"""The application form: one contact form and any number of entries on one page, read from and written to one dict of texts.

The page is always made from what was typed (``Typed``: field name → texts), be it posted, kept as a draft or taken from an
earlier application. So adding an entry, a refusal and coming back tomorrow all show exactly what was written.
"""

import re
import uuid
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Self, cast

from django import forms
from django.http import QueryDict
from django.utils.dates import WEEKDAYS
from django.utils.functional import cached_property
from django.utils.translation import get_language, override
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as _lazy

from gpunex.kit.time import zone
from providers.applications import MOST_ENTRIES, Answers, EntryAnswers
from providers.fields import GbpsField, LongSelect, WholeNumberField
from providers.models import Application, ApplicationEntry, GpuModel
from providers.places import COUNTRIES, country_name
from providers.requirements import EntryFacts, Facts
from providers.weeks import HOURS_A_WEEK, hours_of_windows, windows_of_hours

Typed = dict[str, list[str]]
OTHER = "other"
LONGEST_TEXT = 4000
TOO_LONG = _lazy("At most 4,000 characters fit here. What was beyond them is not in the field any more.")
ALWAYS, WEEKLY = "always", "weekly"
MOST_QUANTITY, MOST_MEMORY_GB = 5_000, 1_000_000
PRESETS: dict[str, tuple[int, ...]] = {
    "nights": tuple(24 * day + hour for day in range(7) for hour in (*range(8), *range(20, 24))),
    "weekends": tuple(range(24 * 5, HOURS_A_WEEK)),
    "clear": (),
}


def countries() -> list[tuple[str, str]]:
    """Codes with their names in the active language, in its alphabet's order."""
    return _countries(get_language() or "en")


@cache
def _countries(language: str) -> list[tuple[str, str]]:
    with override(language):
        return sorted(((code, country_name(code)) for code in COUNTRIES), key=lambda pair: pair[1])


class ContactForm(forms.Form):
    """Who applies, and what stands behind the machines."""

    full_name = forms.CharField(
        label=_lazy("Full legal name"),
        max_length=120,
        widget=forms.TextInput(attrs={"autocomplete": "name"}),
        error_messages={"required": _lazy("Write the legal name of the person we talk to.")},
    )
    email = forms.EmailField(
        label=_lazy("Email"),
        max_length=254,
        widget=forms.EmailInput(attrs={"autocomplete": "email"}),
        error_messages={
            "required": _lazy("Write an email address that reaches you."),
            "invalid": _lazy("This is not an email address. One looks like name@example.com."),
        },
    )
    company = forms.CharField(
        label=_lazy("Company"),
        max_length=120,
        required=False,
        widget=forms.TextInput(attrs={"autocomplete": "organization"}),
    )
    ups = forms.BooleanField(
        label=_lazy("The machines run behind a UPS"),
        required=False,
        help_text=_lazy("Strongly recommended; required for the enterprise tier"),
    )
    commitment_months = forms.TypedChoiceField(
        label=_lazy("Commitment"),
        choices=Application.Commitment.choices,
        coerce=int,
        widget=forms.RadioSelect,
        help_text=_lazy("How long the machines stay on the platform. Longer ranks higher."),
        error_messages={
            "required": _lazy("Choose how long the machines stay."),
            "invalid_choice": _lazy("Choose 3, 6 or 12 months."),
        },
    )
    maintenance_notes = forms.CharField(
        label=_lazy("Maintenance notes"),
        max_length=LONGEST_TEXT,
        required=False,
        widget=forms.Textarea(attrs={"rows": "3"}),
        error_messages={"max_length": TOO_LONG},
        help_text=_lazy("Planned windows or known limits, like “two hours on the first Sunday of each month”."),
    )
    answer = forms.CharField(
        label=_lazy("Your answer"),
        max_length=LONGEST_TEXT,
        widget=forms.Textarea(attrs={"rows": "4"}),
        error_messages={"required": _lazy("Write an answer to the question."), "max_length": TOO_LONG},
    )

    def __init__(self, *args: Any, asked: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not asked:
            del self.fields["answer"]


class EntryForm(forms.Form):
    """One entry. Its hours are 168 boxes, so that the editor works by keyboard and without JavaScript."""

    gpu_model = forms.ChoiceField(
        label=_lazy("Model"),
        error_messages={
            "required": _lazy("Choose a model, or “Other”."),
            "invalid_choice": _lazy("Choose a model of the list, or “Other”."),
        },
    )
    other_model = forms.CharField(
        label=_lazy("Model, if not in the list"),
        max_length=80,
        required=False,
        widget=forms.TextInput(attrs={"placeholder": "RTX 5090 32GB"}),
    )
    quantity = WholeNumberField(
        label=_lazy("Quantity"),
        least=1,
        most=MOST_QUANTITY,
        not_a_number=_lazy("“%(typed)s” is not a number of GPUs. Write a whole number, like 4."),
        out_of_range=_lazy("“%(typed)s” is not possible here. An entry has %(least)s to %(most)s GPUs."),
        error_messages={"required": _lazy("Write how many GPUs.")},
    )
    host_memory_gb = WholeNumberField(
        label=_lazy("Host memory"),
        least=1,
        most=MOST_MEMORY_GB,
        not_a_number=_lazy("“%(typed)s” is not a number of GB. Write a whole number, like 256."),
        out_of_range=_lazy("“%(typed)s” is not possible here. Write %(least)s to %(most)s GB."),
        error_messages={"required": _lazy("Write how much memory the host has for these GPUs.")},
    )
    download_gbps = GbpsField(
        label=_lazy("Download"), error_messages={"required": _lazy("Write the measured download speed.")}
    )
    upload_gbps = GbpsField(
        label=_lazy("Upload"), error_messages={"required": _lazy("Write the measured upload speed.")}
    )
    country = forms.ChoiceField(
        label=_lazy("Country"),
        widget=LongSelect,
        error_messages={
            "required": _lazy("Choose the country the machines stand in."),
            "invalid_choice": _lazy("Choose a country of the list."),
        },
    )
    city = forms.CharField(label=_lazy("City"), max_length=80, required=False)
    datacenter_region = forms.CharField(label=_lazy("Datacenter region"), max_length=80, required=False)
    availability = forms.ChoiceField(
        label=_lazy("Availability"),
        choices=[(ALWAYS, _lazy("Around the clock")), (WEEKLY, _lazy("Weekly schedule"))],
        widget=forms.RadioSelect,
        error_messages={"required": _lazy("Choose when the GPUs are available.")},
    )
    timezone = forms.CharField(
        label=_lazy("Time zone"),
        max_length=64,
        required=False,
        widget=forms.TextInput(
            attrs={"list": "zones", "autocomplete": "off", "data-ltr": True, "data-guess-zone": True}
        ),
    )
    hours = forms.TypedMultipleChoiceField(
        label=_lazy("Weekly hours"),
        choices=[(str(hour), str(hour)) for hour in range(HOURS_A_WEEK)],
        coerce=int,
        required=False,
        error_messages={"invalid_choice": _lazy("One of the hours is not an hour of the week.")},
    )

    def __init__(self, data: QueryDict, *, key: str, models: Sequence[GpuModel]) -> None:
        super().__init__(data, prefix=f"entry-{key}")
        self.key = key
        self.models = {model.slug: model for model in models}
        model, country = (
            cast(forms.ChoiceField, self.fields["gpu_model"]),
            cast(forms.ChoiceField, self.fields["country"]),
        )
        model.choices = _model_choices(models)
        country.choices = [("", _("Choose a country")), *countries()]

    def clean(self) -> dict[str, Any]:
        data = super().clean() or {}
        if data.get("gpu_model") == OTHER and not data.get("other_model") and "other_model" not in self.errors:
            self.add_error("other_model", _("Write the model's name as NVIDIA does."))
        if data.get("availability") == WEEKLY:
            if not data.get("timezone") and "timezone" not in self.errors:
                self.add_error("timezone", _("Write the time zone of these hours, like Asia/Amman."))
            if not data.get("hours") and "hours" not in self.errors:
                self.add_error("hours", _("Choose at least one hour, or “Around the clock”."))
        return data

    def clean_timezone(self) -> str:
        name = self.cleaned_data["timezone"].strip()
        if name:
            try:
                zone(name)
            except ValueError:
                raise forms.ValidationError(
                    _("“%(typed)s” is not a time zone. One looks like Asia/Amman or Europe/Berlin.") % {"typed": name}
                ) from None
        return name

    @property
    def chosen_hours(self) -> set[int]:
        """The boxes that are ticked, whatever else was typed."""
        return {int(text) for text in self["hours"].value() or [] if str(text).isdecimal() and int(text) < HOURS_A_WEEK}

    @property
    def week(self) -> list[dict[str, Any]]:
        """The editor's rows: each day's name, hours and words. Weeks begin on Monday, in Arabic on Saturday."""
        chosen, order = self.chosen_hours, [*range(5, 7), *range(5)] if get_language() == "ar" else list(range(7))
        return [
            {
                "name": str(WEEKDAYS[day]),
                "hours": [
                    {"value": 24 * day + hour, "clock": f"{hour:02d}", "chosen": 24 * day + hour in chosen}
                    for hour in range(24)
                ],
                "says": _runs({hour - 24 * day for hour in chosen if hour // 24 == day}),
                "full": {*range(24 * day, 24 * day + 24)} <= chosen,
            }
            for day in order
        ]

    @property
    def title(self) -> str:
        """ "4 × RTX A6000 48GB", as far as it is known."""
        chosen, quantity = self["gpu_model"].value(), str(self["quantity"].value() or "").strip()
        other = str(self["other_model"].value() or "").strip() if chosen == OTHER else ""
        name = self.models[chosen].name if chosen in self.models else other
        return f"{quantity} × {name}" if name and quantity.isdecimal() else name

    def facts(self) -> EntryFacts:
        """What can be read of it. Precondition: cleaned."""
        data = self.cleaned_data
        return EntryFacts(
            model=self.models.get(data.get("gpu_model", "")),
            other_model=data.get("other_model", "") if data.get("gpu_model") == OTHER else "",
            quantity=data.get("quantity"),
            host_memory_gb=data.get("host_memory_gb"),
            download_gbps=data.get("download_gbps"),
            upload_gbps=data.get("upload_gbps"),
            always_available=data.get("availability") != WEEKLY,
            hours_a_week=len(self.chosen_hours),
        )

    def answers(self) -> EntryAnswers:
        """Precondition: valid."""
        data = self.cleaned_data
        always = data["availability"] == ALWAYS
        return EntryAnswers(
            gpu_model=self.models.get(data["gpu_model"]),
            other_model=data["other_model"] if data["gpu_model"] == OTHER else "",
            quantity=data["quantity"],
            host_memory_gb=data["host_memory_gb"],
            download_gbps=data["download_gbps"],
            upload_gbps=data["upload_gbps"],
            always_available=always,
            windows=[] if always else windows_of_hours(data["hours"]),
            timezone=data["timezone"] or "UTC",
            country=data["country"],
            city=data["city"],
            datacenter_region=data["datacenter_region"],
        )


class ApplicationForm:
    """The whole page: ``contact`` and ``entries``. ``checked=False`` shows what was typed without judging it."""

    def __init__(self, typed: Mapping[str, Sequence[str]], *, asked: bool = False, checked: bool = False) -> None:
        data = QueryDict(mutable=True)
        for name, values in typed.items():
            data.setlist(name, list(values))
        self.asked, self.data = asked, data
        self.keys = [key for key in dict.fromkeys(data.getlist("row")) if re.fullmatch(r"\d{1,4}", key)]
        self.models = list(GpuModel.objects.filter(active=True))
        self.contact = ContactForm(data, asked=asked)
        self.entries = [EntryForm(data, key=key, models=self.models) for key in self.keys]
        self.refusal = ""
        if not checked:
            for form in (self.contact, *self.entries):
                # Bound, so that it shows what was typed; judged already, so that it shows no errors yet.
                form._errors = forms.utils.ErrorDict()  # type: ignore[attr-defined]
                form.cleaned_data = {}

    @classmethod
    def empty(cls, *, full_name: str, email: str) -> Self:
        return cls({"full_name": [full_name], "email": [email], "commitment_months": ["3"]} | _blank_entry("0"))

    @classmethod
    def of(cls, application: Application, *, asked: bool = False) -> Self:
        """What was typed last, else what was sent."""
        return cls(application.draft if application.draft else typed_of(application), asked=asked)

    def with_entry(self) -> Self:
        """One more entry, in the last one's country and zone: further machines often stand beside the first ones."""
        key = str(max((int(key) for key in self.keys), default=-1) + 1)
        typed = self.typed | _blank_entry(key)
        typed["row"] = [*self.keys, key]
        if self.keys:
            for name in ("country", "city", "timezone"):
                typed[f"entry-{key}-{name}"] = typed.get(f"entry-{self.keys[-1]}-{name}", [""])
        return type(self)(typed, asked=self.asked)

    def without_entry(self, key: str) -> Self:
        """The others, untouched; the last one leaves a blank one."""
        typed = {name: values for name, values in self.typed.items() if not name.startswith(f"entry-{key}-")}
        typed["row"] = [other for other in self.keys if other != key]
        if not typed["row"]:
            typed |= _blank_entry("0")
        return type(self)(typed, asked=self.asked)

    def with_hours(self, key: str, preset: str) -> Self:
        typed = self.typed
        typed[f"entry-{key}-hours"] = [str(hour) for hour in PRESETS.get(preset, ())]
        typed[f"entry-{key}-availability"] = [WEEKLY]
        return type(self)(typed, asked=self.asked)

    def checked(self) -> Self:
        return type(self)(self.typed, asked=self.asked, checked=True)

    @property
    def typed(self) -> Typed:
        """The fields of this form and no others (no CSRF token, no buttons), each text cut to one character more than any field takes."""
        known = {"row", *self.contact.fields, *(form.add_prefix(name) for form in self.entries for name in form.fields)}
        return {
            name: [text[: LONGEST_TEXT + 1].replace("\0", "") for text in self.data.getlist(name)][:HOURS_A_WEEK]
            for name in self.data
            if name in known
        }

    def is_valid(self) -> bool:
        """Precondition: checked. Every form is judged, so that all refusals show at once."""
        if len(self.entries) > MOST_ENTRIES:
            self.refusal = _(
                "One application holds at most %(most)s entries. Put like GPUs of one site into one entry."
            ) % {"most": MOST_ENTRIES}
        elif not self.entries:
            self.refusal = _("An application names at least one entry of GPUs.")
        return all([form.is_valid() for form in (self.contact, *self.entries)]) and not self.refusal

    @cached_property
    def problems(self) -> int:
        """How many answers need a change."""
        return sum(len(form.errors) for form in (self.contact, *self.entries)) + bool(self.refusal)

    def facts(self) -> Facts:
        """What the tier check reads. Precondition: checked."""
        for form in (self.contact, *self.entries):
            form.is_valid()
        return Facts(
            entries=[form.facts() for form in self.entries],
            ups=bool(self.contact.cleaned_data.get("ups")),
            commitment_months=self.contact.cleaned_data.get("commitment_months"),
        )

    def answers(self) -> Answers:
        """Precondition: valid."""
        data = self.contact.cleaned_data
        return Answers(
            full_name=data["full_name"],
            email=data["email"],
            company=data["company"],
            ups=data["ups"],
            commitment_months=data["commitment_months"],
            maintenance_notes=data["maintenance_notes"],
            entries=[form.answers() for form in self.entries],
        )


def posted(data: QueryDict) -> Typed:
    return {name: data.getlist(name) for name in data}


def form_token(text: str | None) -> uuid.UUID | None:
    """The page's token, or None for what is none: a form without one is a form all the same."""
    try:
        return uuid.UUID(text or "")
    except ValueError:
        return None


def typed_of(application: Application) -> Typed:
    """An application's answers as one would have typed them."""
    typed: Typed = {
        "full_name": [application.full_name],
        "email": [application.email],
        "company": [application.company],
        "commitment_months": [str(application.commitment_months)],
        "maintenance_notes": [application.maintenance_notes],
        "row": [],
    }
    if application.ups:
        typed["ups"] = ["on"]
    for position, entry in enumerate(application.entries.select_related("gpu_model")):
        typed["row"].append(str(position))
        typed |= {f"entry-{position}-{name}": values for name, values in _typed_entry(entry).items()}
    return typed if typed["row"] else typed | _blank_entry("0")


def _typed_entry(entry: ApplicationEntry) -> Typed:
    return {
        "gpu_model": [entry.gpu_model.slug if entry.gpu_model else OTHER],
        "other_model": [entry.other_model],
        "quantity": [str(entry.quantity)],
        "host_memory_gb": [str(entry.host_memory_gb)],
        "download_gbps": [f"{entry.download_gbps.normalize():f}"],
        "upload_gbps": [f"{entry.upload_gbps.normalize():f}"],
        "country": [entry.country],
        "city": [entry.city],
        "datacenter_region": [entry.datacenter_region],
        "availability": [ALWAYS if entry.always_available else WEEKLY],
        "timezone": [entry.timezone],
        "hours": [str(hour) for hour in sorted(hours_of_windows(entry.windows))],
    }


def _blank_entry(key: str) -> Typed:
    return {"row": [key], f"entry-{key}-availability": [ALWAYS]}


def _model_choices(models: Sequence[GpuModel]) -> list[Any]:
    groups = [
        (
            str(GpuModel.Klass(klass).label).capitalize(),
            [(model.slug, model.name) for model in models if model.klass == klass],
        )
        for klass in GpuModel.Klass.values
    ]
    return [("", _("Choose a model")), *(group for group in groups if group[1]), (OTHER, _("Other, not in the list"))]


def _runs(hours: set[int]) -> str:
    """ "00–07, 18–24" of one day's hours."""
    starts = sorted(hour for hour in hours if hour - 1 not in hours)
    ends = sorted(hour + 1 for hour in hours if hour + 1 not in hours)
    return ", ".join(f"{start:02d}–{end:02d}" for start, end in zip(starts, ends, strict=True))
