"""Forms of the marketplace: what people type, read by the rules and refused beside its field."""

import shlex
import uuid
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.utils.translation import gettext_lazy as _

from gpunex.kit.money import as_decimal_string, parse_usdc
from gpunex.kit.refusals import Refusal
from gpunex.kit.secrets import decrypt
from gpunex.policy.models import Tier
from marketplace import containers, pricing, search
from marketplace.models import Listing, Rental
from providers import places
from providers.models import GpuModel

OWN = "own"
_SORTS = (
    ("-rank", _("Rank, best first")),
    ("price", _("Price, lowest first")),
    ("-reliability", _("Reliability, highest first")),
    ("-performance", _("Performance, highest first")),
    ("-free", _("Free GPUs, most first")),
    ("-vram", _("VRAM, most first")),
    ("-download", _("Download, fastest first")),
    ("-disk_read", _("SSD read, fastest first")),
    ("-price", _("Price, highest first")),
)


def kept[T](read: Callable[[str], T], text: str) -> T:
    """``read`` with its refusal as the field's error."""
    try:
        return read(text)
    except Refusal as refusal:
        raise ValidationError(str(refusal), code=refusal.code) from None


class FilterForm(forms.Form):
    """The dress of ``search``: its fields show what was asked, its errors are the search's own."""

    FIRST = ("model", "gpus", "region", "price_max", "reliability_min", "tier")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.auto_id = "f-%s"
        anything = ("", _("Any"))
        choices: dict[str, list[Any]] = {
            "model": [anything, *GpuModel.objects.values_list("slug", "name")],
            "region": [
                ("", _("Anywhere")),
                *((code, places.region_name(code)) for code in places.REGIONS if code != "AN"),
            ],
            "tier": [("", _("Both")), *Tier.choices],
            "country": [anything, *_countries()],
        }
        for name, known in search.FILTERS.items():
            widget = (
                forms.Select(choices=choices[name])
                if name in choices
                else forms.TextInput(attrs={"inputmode": "decimal", "autocomplete": "off"})
            )
            self.fields[name] = forms.CharField(label=str(known.label), required=False, widget=widget)
        self.fields["sort"] = forms.CharField(label=_("Sort by"), required=False, widget=forms.Select(choices=_SORTS))
        self.found = search.parse(self.data.dict() if hasattr(self.data, "dict") else dict(self.data))

    def clean(self) -> None:
        for name, refusal in self.found.errors.items():
            self.add_error(name if name in self.fields else None, str(refusal))

    @property
    def first_row(self) -> list[tuple[forms.BoundField, Any]]:
        return [(self[name], search.FILTERS[name].unit) for name in self.FIRST] + [(self["sort"], "")]

    @property
    def more(self) -> list[tuple[forms.BoundField, Any]]:
        return [(self[name], known.unit) for name, known in search.FILTERS.items() if name not in self.FIRST]

    @property
    def more_used(self) -> bool:
        return any(bound.value() for bound, _unit in self.more)


def _countries() -> list[tuple[str, str]]:
    codes = Listing.objects.exclude(country="").order_by().values_list("country", flat=True).distinct()
    return sorted(((code, places.country_name(code)) for code in codes), key=lambda pair: pair[1])


class RentForm(forms.Form):
    """What to run on an offer, and how far it may go."""

    gpus = forms.TypedChoiceField(label=_("GPUs"), coerce=int)
    template = forms.ChoiceField(label=_("Image"))
    image = forms.CharField(
        label=_("Any other image"),
        required=False,
        max_length=1000,
        widget=forms.TextInput(
            attrs={
                "data-ltr": True,
                "class": "mono",
                "spellcheck": "false",
                "autocapitalize": "off",
                "placeholder": "ghcr.io/acme/train:1",
            }
        ),
    )
    command = forms.CharField(
        label=_("Command"),
        required=False,
        strip=False,
        widget=forms.Textarea(
            attrs={"rows": 3, "data-ltr": True, "class": "mono", "spellcheck": "false", "autocapitalize": "off"}
        ),
        help_text=_("As typed in a shell. Empty runs the image’s own, or the one of the chosen template."),
    )
    environment = forms.CharField(
        label=_("Environment"),
        required=False,
        strip=False,
        widget=forms.Textarea(
            attrs={
                "rows": 3,
                "data-ltr": True,
                "class": "mono",
                "spellcheck": "false",
                "autocapitalize": "off",
                "placeholder": "NAME=value",
            }
        ),
        help_text=_("One a line. Kept encrypted; the host can read it while it runs, so use tokens of narrow scope."),
    )
    stop_after = forms.CharField(
        label=_("Stop after"), required=False, widget=forms.TextInput(attrs={"inputmode": "decimal"})
    )
    spend_at_most = forms.CharField(
        label=_("Spend at most"), required=False, widget=forms.TextInput(attrs={"inputmode": "decimal"})
    )
    key = forms.CharField(max_length=64, widget=forms.HiddenInput)
    price = forms.IntegerField(min_value=1, widget=forms.HiddenInput)

    def __init__(self, *args: Any, listing: Listing, again: Rental | None = None, **kwargs: Any) -> None:
        initial = {
            "gpus": 1,
            "template": containers.TEMPLATES[0].key,
            "key": uuid.uuid4().hex,
            "price": listing.price_micro,
        }
        super().__init__(*args, **kwargs | {"initial": initial | (_as_before(again) if again else {})})
        self.auto_id = "r-%s"
        most = max(1, listing.gpus_free)
        gpus, template = self.fields["gpus"], self.fields["template"]
        assert isinstance(gpus, forms.ChoiceField)
        assert isinstance(template, forms.ChoiceField)
        gpus.widget = forms.RadioSelect() if most <= 4 else forms.Select()
        gpus.choices = [(number, str(number)) for number in range(1, most + 1)]
        gpus.error_messages["invalid_choice"] = _("This offer has %(free)s GPUs free.") % {"free": listing.gpus_free}
        known = [(each.key, str(each.name)) for each in containers.TEMPLATES]
        template.choices = [*known, (OWN, str(_("Any other image")))]

    def clean_command(self) -> list[str]:
        return kept(containers.parse_command, self.cleaned_data["command"])

    def clean_environment(self) -> dict[str, str]:
        return kept(containers.parse_environment, self.cleaned_data["environment"])

    def clean_stop_after(self) -> int | None:
        return kept(seconds_of, self.cleaned_data["stop_after"]) if self.cleaned_data["stop_after"] else None

    def clean_spend_at_most(self) -> int | None:
        return kept(parse_usdc, self.cleaned_data["spend_at_most"]) if self.cleaned_data["spend_at_most"] else None

    def clean(self) -> None:
        data = self.cleaned_data
        typed = data.get("image", "").strip()
        known = next((template for template in containers.TEMPLATES if template.key == data.get("template")), None)
        # Whoever types an image means it, whatever the list above says.
        if typed or known is None:
            try:
                data["reference"] = containers.parse_image(typed).text
            except Refusal as refusal:
                self.add_error("image", str(refusal))
        else:
            data["reference"] = known.image
            if not data.get("command") and "command" not in self.errors:
                data["command"] = containers.parse_command(known.command)


class HoursNotValid(Refusal):
    code = "hours_invalid"
    message = _("“%(text)s” is not a number of hours. 30 minutes is 0.5.")


def seconds_of(hours: str) -> int:
    """Hours with up to three decimals, as seconds. Raises HoursNotValid.

    >>> seconds_of("0.5"), seconds_of("8")
    (1800, 28800)
    """
    try:
        micro = parse_usdc(hours)  # the same strictness as an amount: digits, a point, no signs and no exponents
    except Refusal:
        raise HoursNotValid(text=hours[:40]) from None
    return int(Decimal(micro) * 3600 / 1_000_000)


def _as_before(rental: Rental) -> dict[str, Any]:
    request = rental.request
    known = containers.template_of(request.image)
    command = (
        request.command[2]
        if request.command[:2] == ["sh", "-c"] and len(request.command) == 3
        else shlex.join(request.command)
    )
    environment = decrypt(request.environment) if request.environment else {}
    return {
        "gpus": request.gpu_count,
        "template": known.key if known else OWN,
        "image": "" if known else request.image,
        "command": command,
        "environment": "\n".join(f"{name}={value}" for name, value in environment.items()),
        "stop_after": f"{Decimal(request.stop_after_seconds) / 3600:.4f}".rstrip("0").rstrip(".")
        if request.stop_after_seconds
        else "",
        "spend_at_most": as_decimal_string(request.spend_at_most_micro) if request.spend_at_most_micro else "",
    }


class PricesForm(forms.Form):
    """A price for each of a provider's models; an empty one leaves the model without."""

    def __init__(self, *args: Any, models: list[GpuModel], current: dict[int, int], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.auto_id = "p-%s"
        self.models, self.current = models, current
        for model in models:
            price = current.get(model.pk)
            self.fields[model.slug] = forms.CharField(
                label=model.name,
                required=False,
                initial=as_decimal_string(price) if price else "",
                widget=forms.TextInput(attrs={"inputmode": "decimal", "dir": "ltr", "autocomplete": "off"}),
            )

    def clean(self) -> None:
        for model in self.models:
            text = (self.cleaned_data.get(model.slug) or "").strip()
            if not text:
                if model.pk in self.current:
                    self.add_error(
                        model.slug,
                        _("A price stays until another takes its place. To offer no more, hide the machine."),
                    )
                continue
            try:
                self.cleaned_data[model.slug] = pricing.parse_price(text)
            except Refusal as refusal:
                self.add_error(model.slug, str(refusal))
