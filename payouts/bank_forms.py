"""Forms of bank accounts, for the provider's page: they read what was typed, ``payouts.bank.details`` judges it."""

from collections.abc import Callable
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.utils.translation import gettext_lazy as _

from gpunex.kit.refusals import Refusal
from gpunex.policy.models import Policy
from payouts.bank import details
from payouts.bank.details import CHECKING, COMPANY, PERSON, SAVINGS, BankNotKnown, CountryNotServed
from payouts.models import Rail
from providers.places import COUNTRIES, country_name

_LATIN = {"dir": "ltr", "autocomplete": "off", "spellcheck": "false", "class": "mono"}
_NAME_HINT = _("As the bank has it. Names in other alphabets are written in Latin letters for the transfer.")


def _judged[T](read: Callable[[str], T], text: str) -> T:
    """What ``read`` makes of it; a refusal stands beside the field."""
    try:
        return read(text)
    except Refusal as refusal:
        raise ValidationError(str(refusal), code=refusal.code) from refusal


class CountryForm(forms.Form):
    """Where the bank is: what is asked next depends on it."""

    country = forms.ChoiceField(
        label=_("Country of your bank"), error_messages={"required": _("Choose the country of your bank.")}
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        named = sorted(((code, country_name(code)) for code in COUNTRIES), key=lambda pair: pair[1])
        self.fields["country"].choices = [("", _("Choose a country")), *named]  # type: ignore[attr-defined]


class _AccountForm(forms.Form):
    name = forms.CharField(
        label=_("Account holder"),
        max_length=200,
        help_text=_NAME_HINT,
        widget=forms.TextInput(attrs={"autocomplete": "name"}),
        error_messages={"required": details.NameMissing.message},
    )

    rail: Rail

    def clean_name(self) -> str:
        return _judged(details.read_name, self.cleaned_data["name"])

    @property
    def kept(self) -> dict[str, str]:
        """What is kept, encrypted. Of a valid form."""
        raise NotImplementedError

    @property
    def masked(self) -> str:
        raise NotImplementedError

    @property
    def country(self) -> str:
        raise NotImplementedError


class SepaForm(_AccountForm):
    """An account in the euro area: the IBAN is enough."""

    iban = forms.CharField(
        label=_("IBAN"),
        max_length=80,
        widget=forms.TextInput(attrs=_LATIN),
        error_messages={"required": _("Enter the IBAN; it stands on your statements and in your bank’s app.")},
    )
    bic = forms.CharField(
        label=_("BIC"),
        max_length=40,
        required=False,
        help_text=_("Only if your bank asks senders for it."),
        widget=forms.TextInput(attrs=_LATIN),
    )
    sure = forms.BooleanField(label=_("I have compared the IBAN; it is right."), required=False)

    rail = Rail.SEPA
    asks_sure = False

    def clean_iban(self) -> str:
        iban = _judged(details.read_iban, self.cleaned_data["iban"])
        if not details.is_served(iban[:2], Policy.load()):
            raise ValidationError(str(CountryNotServed(country=country_name(iban[:2]))), code=CountryNotServed.code)
        return iban

    def clean_bic(self) -> str:
        return _judged(details.read_bic, self.cleaned_data["bic"])

    def clean(self) -> dict[str, Any]:
        data = super().clean() or {}
        iban = data.get("iban")
        if iban and not details.bank_code_is_known(iban):
            self.asks_sure = True
            if not data.get("sure"):
                refusal = BankNotKnown(code=details.bank_code(iban), country=country_name(iban[:2]))
                self.add_error("iban", ValidationError(str(refusal), code=refusal.code))
        return data

    @property
    def kept(self) -> dict[str, str]:
        data = self.cleaned_data
        return details.sepa_details(name=data["name"], iban=data["iban"], bic=data["bic"])

    @property
    def masked(self) -> str:
        return details.mask_iban(self.cleaned_data["iban"])

    @property
    def country(self) -> str:
        return self.cleaned_data["iban"][:2]


class AchForm(_AccountForm):
    """A US account: routing and account number. Nothing checks the account number, so it is typed twice."""

    holder = forms.ChoiceField(
        label=_("The holder is"),
        choices=[(PERSON, _("a person")), (COMPANY, _("a company"))],
        initial=PERSON,
        widget=forms.RadioSelect,
        error_messages={"required": _("Say whether the account is a person’s or a company’s.")},
    )
    routing = forms.CharField(
        label=_("Routing number"),
        max_length=40,
        help_text=_("Nine digits; the one for ACH transfers, if your bank has several."),
        widget=forms.TextInput(attrs=_LATIN | {"inputmode": "numeric"}),
        error_messages={"required": details.RoutingDigits.message},
    )
    account = forms.CharField(
        label=_("Account number"),
        max_length=60,
        widget=forms.TextInput(attrs=_LATIN | {"inputmode": "numeric"}),
        error_messages={"required": details.AccountDigits.message},
    )
    account_again = forms.CharField(
        label=_("Account number, once more"),
        max_length=60,
        help_text=_("Read it from your bank, not from the field above: no check digit would notice a slip."),
        widget=forms.TextInput(attrs=_LATIN | {"inputmode": "numeric"}),
        error_messages={"required": _("Type the account number a second time.")},
    )
    account_type = forms.ChoiceField(
        label=_("Kind of account"),
        choices=[(CHECKING, _("checking")), (SAVINGS, _("savings"))],
        initial=CHECKING,
        widget=forms.RadioSelect,
        error_messages={"required": _("Say whether it is a checking or a savings account.")},
    )

    rail = Rail.ACH

    def clean_routing(self) -> str:
        return _judged(details.read_routing, self.cleaned_data["routing"])

    def clean_account(self) -> str:
        return _judged(details.read_account, self.cleaned_data["account"])

    def clean_account_again(self) -> str:
        return _judged(details.read_account, self.cleaned_data["account_again"])

    def clean(self) -> dict[str, Any]:
        data = super().clean() or {}
        account, again = data.get("account"), data.get("account_again")
        if account and again and account != again:
            self.add_error("account_again", _("The two account numbers differ. Compare both with your bank’s page."))
        return data

    @property
    def kept(self) -> dict[str, str]:
        data = self.cleaned_data
        return details.ach_details(
            name=data["name"],
            holder=data["holder"],
            routing=data["routing"],
            account=data["account"],
            account_type=data["account_type"],
        )

    @property
    def masked(self) -> str:
        return details.mask_account(self.cleaned_data["account"])

    @property
    def country(self) -> str:
        return details.US


FORMS: dict[Rail, type[SepaForm] | type[AchForm]] = {Rail.SEPA: SepaForm, Rail.ACH: AchForm}
