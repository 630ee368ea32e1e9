"""Bank accounts as people write them: what is accepted, why something is refused, and what is shown of it.

1. Spaces of every kind, hyphens, lower case and Arabic digits are how people write numbers; they are read, not refused.
2. An IBAN must add up, have its country's length, and pass the country's own check digits where it has some.
3. The bank's code in it should be one that is known. Registers are never complete, so whoever has looked may insist.
4. A BIC is checked by itself and never against the IBAN: one bank has several, and many accounts need none.
5. A US routing number has nine digits that add up and begins as the Federal Reserve gives them out; adding up alone would let
   000000000 pass.
6. Only the last digits of an account are ever shown.

>>> read_iban("de89 3704 0044 0532 0130 00")
'DE89370400440532013000'
>>> mask_iban("DE89370400440532013000"), mask_account("000123456789")
('DE•• •••• 3000', '•••• 6789')
>>> read_routing("0210-0002-1")
'021000021'
>>> bank_code_is_known("DE89370400440532013000")
True
"""

import re
import unicodedata
import warnings

from django.utils.translation import gettext_lazy as _
from schwifty import BIC, IBAN, registry
from schwifty import exceptions as schwifty_errors
from stdnum.us import rtn

from gpunex.kit.refusals import Refusal
from gpunex.policy.models import Policy
from payouts.bank.latin import latin
from payouts.models import Rail
from providers.places import country_name

LONGEST_NAME = 70
SHOWN = 4
US = "US"
CHECKING, SAVINGS = "checking", "savings"
PERSON, COMPANY = "person", "company"

_DIGITS = str.maketrans("٠١٢٣٤٥٦٧٨٩۰۱۲۳۴۵۶۷۸۹", "01234567890123456789")
_PREFIXES = (*range(1, 13), *range(21, 33), *range(61, 73), 80)
_ACCOUNT = re.compile(r"\d{4,17}", re.ASCII)


class NameMissing(Refusal):
    code = "name_missing"
    message = _("Write the name of the account’s holder as the bank has it, in Latin letters.")


class NameTooLong(Refusal):
    code = "name_too_long"
    message = _("A bank takes at most %(most)s characters of a name. Shorten it as your bank does on its statements.")


class IbanCharacters(Refusal):
    code = "iban_characters"
    message = _("An IBAN is made of letters and digits, and begins with the two letters of its country.")


class IbanCountry(Refusal):
    code = "iban_country"
    message = _("No IBAN begins with “%(country)s”. Copy it again from your bank’s page or a statement.")


class IbanLength(Refusal):
    code = "iban_length"
    message = _("An IBAN of %(country)s has %(length)s characters; this one has %(have)s. Compare it with a statement.")


class IbanDoesNotAddUp(Refusal):
    code = "iban_does_not_add_up"
    message = _("The check digits do not fit: one character is wrong, or two are swapped. Compare it with a statement.")


class IbanShape(Refusal):
    code = "iban_shape"
    message = _("This is not how an IBAN of %(country)s is built. Copy it again from your bank’s page or a statement.")


class NoSepaThere(Refusal):
    code = "no_sepa_there"
    message = _("SEPA does not reach %(country)s, so this account cannot be paid in euro. USDC works everywhere.")


class CountryNotServed(Refusal):
    code = "country_not_served"
    message = _("There are no payouts to banks in %(country)s yet. USDC works everywhere.")


class BankNotKnown(Refusal):
    code = "bank_not_known"
    message = _(
        "No bank with the code %(code)s is in the register of %(country)s. Compare the IBAN with a statement; if it is right, say so below."
    )


class NotABic(Refusal):
    code = "not_a_bic"
    message = _("A BIC has 8 or 11 characters, such as COBADEFFXXX. Correct it, or leave it out: the IBAN is enough.")


class RoutingDigits(Refusal):
    code = "routing_digits"
    message = _("A routing number has nine digits. It stands at the bottom of a check, at the start.")


class RoutingNotReal(Refusal):
    code = "routing_not_real"
    message = _(
        "No bank has this routing number: a digit is wrong. Compare it with your bank’s page for ACH transfers."
    )


class AccountDigits(Refusal):
    code = "account_digits"
    message = _("An account number has 4 to 17 digits. Leave nothing out, not even zeros at its start.")


class BankVanished(Refusal):
    code = "bank_vanished"
    message = _("The bank with the code %(code)s is not in its country’s register any more.")


def rail_of_country(country: str) -> Rail | None:
    """By which rail banks of ``country`` are paid; None if by none of ours.

    >>> rail_of_country("DE"), rail_of_country("US"), rail_of_country("EG")
    (Rail.SEPA, Rail.ACH, None)
    """
    if country == US:
        return Rail.ACH
    try:
        return Rail.SEPA if registry.get_iban_spec(country).in_sepa_zone else None
    except schwifty_errors.InvalidCountryCode:
        return None


def served_countries(policy: Policy) -> list[str]:
    """Where payouts to banks go: the policy's countries that a rail of ours reaches."""
    return [code for code in policy.payout_countries if rail_of_country(code) is not None]


def is_served(country: str, policy: Policy) -> bool:
    return country in served_countries(policy)


# --- what was typed --------------------------------------------------------------------------------------------------


def read_name(text: str) -> str:
    """The holder's name, its spaces put right. Raises NameMissing, NameTooLong."""
    name = " ".join(_visible(text).split())
    if len(name) > LONGEST_NAME:
        raise NameTooLong(most=LONGEST_NAME)
    if not any(character.isalnum() for character in latin(name, most=LONGEST_NAME)):
        raise NameMissing
    return name


def read_iban(text: str) -> str:
    """The IBAN without its spaces. Raises IbanCharacters, IbanCountry, IbanLength, IbanShape, IbanDoesNotAddUp, NoSepaThere."""
    compact = _compact(text)
    if not re.fullmatch(r"[A-Z]{2}[A-Z0-9]+", compact):
        raise IbanCharacters
    country = compact[:2]
    try:
        length = registry.get_iban_spec(country).iban_length
    except schwifty_errors.InvalidCountryCode as error:
        raise IbanCountry(country=country) from error
    if len(compact) != length:
        raise IbanLength(country=country_name(country), length=length, have=len(compact))
    try:
        with warnings.catch_warnings():
            # A country whose own check digits nobody verifies is no reason against an IBAN.
            warnings.simplefilter("ignore", schwifty_errors.NationalChecksumNotVerified)
            iban = IBAN(compact, validate_bban=True)
    except (schwifty_errors.InvalidChecksumDigits, schwifty_errors.InvalidBBANChecksum) as error:
        raise IbanDoesNotAddUp from error
    except schwifty_errors.SchwiftyException as error:
        raise IbanShape(country=country_name(country)) from error
    if not iban.in_sepa_zone:
        raise NoSepaThere(country=country_name(country))
    return str(iban)


def read_bic(text: str) -> str:
    """The BIC in capitals, or "" if none was given. Raises NotABic."""
    compact = _compact(text)
    if not compact:
        return ""
    try:
        return str(BIC(compact))
    except schwifty_errors.SchwiftyException as error:
        raise NotABic from error


def read_routing(text: str) -> str:
    """The nine digits of a US routing number. Raises RoutingDigits, RoutingNotReal."""
    compact = _compact(text)
    if not re.fullmatch(r"\d{9}", compact, re.ASCII):
        raise RoutingDigits
    if not rtn.is_valid(compact) or int(compact[:2]) not in _PREFIXES:
        raise RoutingNotReal
    return compact


def read_account(text: str) -> str:
    """The digits of a US account number, zeros at its start kept. Raises AccountDigits."""
    compact = _compact(text)
    if not _ACCOUNT.fullmatch(compact) or not compact.strip("0"):
        raise AccountDigits
    return compact


def _compact(text: str) -> str:
    """Without spaces, hyphens and marks that nobody sees, in capitals, with Western digits."""
    return "".join(_visible(text).split()).translate(_DIGITS).replace("-", "").replace("\N{HYPHEN}", "").upper()


def _visible(text: str) -> str:
    """Without format and control characters: a pasted number in Arabic text brings marks of direction along."""
    return "".join(
        " " if character.isspace() else character
        for character in text
        if character.isspace() or unicodedata.category(character) not in {"Cc", "Cf", "Cs", "Co", "Cn"}
    )


# --- what is known of it ---------------------------------------------------------------------------------------------


def bank_code_is_known(iban: str) -> bool:
    """Whether the country's register has the bank; also True where there is no register to look into."""
    parsed = IBAN(iban, allow_invalid=True)
    return parsed.bank is not None or not registry.get_banks_by_country(parsed.country_code)


def bank_code(iban: str) -> str:
    return IBAN(iban, allow_invalid=True).bank_code


def bank_name(iban: str) -> str:
    """As the register has it, "" where it has none: to compare with, never to decide."""
    bank = IBAN(iban, allow_invalid=True).bank
    return bank.name if bank else ""


def sepa_details(*, name: str, iban: str, bic: str) -> dict[str, str]:
    """What is kept, encrypted. ``bank`` says whether the register had the bank, so that its vanishing is noticed later."""
    return {"name": name, "iban": iban, "bic": bic, "bank": "known" if bank_code_is_known(iban) else ""}


def ach_details(*, name: str, holder: str, routing: str, account: str, account_type: str) -> dict[str, str]:
    return {"name": name, "holder": holder, "routing": routing, "account": account, "account_type": account_type}


def check_still_payable(rail: str, details: dict[str, str], *, bank_too: bool = True) -> None:
    """Look again before an account goes into a file: what was right when it was entered may not be any more. Raises a Refusal.

    ``bank_too``: also that its bank is still in the register, if it was there.
    """
    read_name(details["name"])
    if rail == Rail.ACH:
        read_routing(details["routing"])
        read_account(details["account"])
        return
    iban = read_iban(details["iban"])
    read_bic(details["bic"])
    if bank_too and details.get("bank") and not bank_code_is_known(iban):
        raise BankVanished(code=bank_code(iban))


def mask_iban(iban: str) -> str:
    return f"{iban[:2]}•• •••• {iban[-SHOWN:]}"


def mask_account(account: str) -> str:
    """The last four digits, two of a short number: four of four would be all of it."""
    return f"•••• {account[-(SHOWN if len(account) >= 2 * SHOWN else SHOWN // 2) :]}"
