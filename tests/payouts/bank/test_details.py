"""Bank accounts as people type them: what is read, what is refused and in which words, and what is ever shown."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from payouts.bank import details
from payouts.bank.latin import latin
from payouts.models import Rail

IBAN = "DE89370400440532013000"
NBSP, THIN, RLM = "\N{NO-BREAK SPACE}", "\N{NARROW NO-BREAK SPACE}", "\N{RIGHT-TO-LEFT MARK}"


@pytest.mark.spec("H3")
@pytest.mark.parametrize(
    "typed",
    [
        IBAN,
        "DE89 3704 0044 0532 0130 00",
        "de89370400440532013000",
        f"DE89{NBSP}3704{NBSP}0044{NBSP}0532{NBSP}0130{NBSP}00",
        f"{RLM}DE89{THIN}3704 0044 0532 0130 00{RLM}\n",
        "DE89-3704-0044-0532-0130-00",
        "DE٨٩ ٣٧٠٤ ٠٠٤٤ ٠٥٣٢ ٠١٣٠ ٠٠",
    ],
)
def test_an_iban_is_read_as_people_write_it(typed: str) -> None:
    assert details.read_iban(typed) == IBAN


@pytest.mark.parametrize(
    "iban",
    [
        "AT611904300234573201",
        "BE68539007547034",
        "ES9121000418450200051332",
        "FR1420041010050500013M02606",
        "IE29AIBK93115212345678",
        "IT60X0542811101000000123456",
        "NL91ABNA0417164300",
        "PT50000201231234567890154",
        "SI56263300012039086",
        "MT84MALT011000012345MTLCAST001S",
        "FI2112345600000785",
        "HR1210010051863000160",
    ],
)
def test_the_examples_of_the_countries_are_taken(iban: str) -> None:
    assert details.read_iban(iban.lower()) == iban


@pytest.mark.parametrize(
    ("typed", "refusal"),
    [
        ("", details.IbanCharacters),
        ("hello", details.IbanCountry),
        ("DE89 3704 0044 0532 0130 0!", details.IbanCharacters),
        ("ZZ89370400440532013000", details.IbanCountry),
        ("DE8937040044053201300", details.IbanLength),
        ("DE893704004405320130000", details.IbanLength),
        ("DE89370400440532013001", details.IbanDoesNotAddUp),
        ("DE98370400440532013000", details.IbanDoesNotAddUp),
        ("BE62539007547035", details.IbanDoesNotAddUp),  # adds up, and the Belgian check digits do not
        ("DE5137040044O532013000", details.IbanShape),
        ("AE070331234567890123456", details.NoSepaThere),
    ],
)
def test_what_is_no_iban_of_sepa_is_refused_with_what_to_do(typed: str, refusal: type[Exception]) -> None:
    with pytest.raises(refusal) as caught:
        details.read_iban(typed)
    assert len(str(caught.value)) > 20
    assert "%(" not in str(caught.value)


def test_every_single_wrong_digit_is_noticed() -> None:
    for place in range(4, len(IBAN)):
        for digit in "0123456789":
            wrong = IBAN[:place] + digit + IBAN[place + 1 :]
            if wrong != IBAN:
                with pytest.raises(details.IbanDoesNotAddUp):
                    details.read_iban(wrong)


@pytest.mark.case("money-F52")
@pytest.mark.parametrize(
    ("typed", "read"), [("", ""), ("  ", ""), ("cobadeff", "COBADEFF"), ("COBA DE FF XXX", "COBADEFFXXX")]
)
def test_a_bic_is_taken_by_itself_whatever_the_iban_says(typed: str, read: str) -> None:
    assert details.read_bic(typed) == read


@pytest.mark.parametrize("typed", ["COBA", "COBADEFFXX", "C0BADEFF1234", "COBAXXFF", "DE89370400440532013000"])
def test_what_is_no_bic_is_refused(typed: str) -> None:
    with pytest.raises(details.NotABic):
        details.read_bic(typed)


@pytest.mark.spec("H3")
@pytest.mark.parametrize("typed", ["021000021", "0210-0002-1", " 121 000 358 ", "٠٢١٠٠٠٠٢١", "322271627", "800000006"])
def test_routing_numbers_that_exist_are_taken(typed: str) -> None:
    assert len(details.read_routing(typed)) == 9


@pytest.mark.parametrize(
    ("typed", "refusal"),
    [
        ("", details.RoutingDigits),
        ("12345678", details.RoutingDigits),
        ("0210000211", details.RoutingDigits),
        ("02100002X", details.RoutingDigits),
        ("021000022", details.RoutingNotReal),
        ("000000000", details.RoutingNotReal),
        ("999999992", details.RoutingNotReal),
        ("131000002", details.RoutingNotReal),
    ],
)
def test_routing_numbers_that_do_not_are_refused_though_they_may_add_up(typed: str, refusal: type[Exception]) -> None:
    with pytest.raises(refusal):
        details.read_routing(typed)


def test_account_numbers_keep_the_zeros_at_their_start() -> None:
    assert details.read_account("0001 2345-6789") == "000123456789"


@pytest.mark.parametrize("typed", ["", "123", "123456789012345678", "12345a", "0000", "-"])
def test_other_account_numbers_are_refused(typed: str) -> None:
    with pytest.raises(details.AccountDigits):
        details.read_account(typed)


@pytest.mark.parametrize(
    ("typed", "refusal"),
    [
        ("", details.NameMissing),
        ("🦊🦊", details.NameMissing),
        ("&<>", details.NameMissing),
        ("x" * 71, details.NameTooLong),
    ],
)
def test_a_name_that_no_bank_can_write_is_refused(typed: str, refusal: type[Exception]) -> None:
    with pytest.raises(refusal):
        details.read_name(typed)


def test_only_the_last_digits_are_shown_and_never_all_of_them() -> None:
    assert details.mask_iban(IBAN) == "DE•• •••• 3000"
    assert details.mask_account("000123456789") == "•••• 6789"
    assert details.mask_account("1234") == "•••• 34"


def test_which_rail_reaches_a_country() -> None:
    assert [details.rail_of_country(code) for code in ("DE", "SM", "CH", "US", "EG", "AE", "XX", "")] == [
        Rail.SEPA,
        Rail.SEPA,
        Rail.SEPA,
        Rail.ACH,
        None,
        None,
        None,
        None,
    ]


@pytest.mark.case("money-F49")
def test_a_bank_that_vanished_is_noticed_before_it_is_paid_and_an_unknown_one_that_was_confirmed_is_not() -> None:
    unknown = "DE17123456780000000001"
    assert details.read_iban(unknown) == unknown and not details.bank_code_is_known(unknown)
    assert details.bank_code_is_known("SM86U0322509800000000270100")  # there is no register to look into
    kept = details.sepa_details(name="Nour", iban=unknown, bic="")
    details.check_still_payable(Rail.SEPA, kept)
    with pytest.raises(details.BankVanished):
        details.check_still_payable(Rail.SEPA, kept | {"bank": "known"})


EPC = set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/-?:().,'+ ")


@given(st.text(max_size=200), st.integers(1, 140))
def test_whatever_is_written_is_in_the_set_of_the_banks_and_short_enough(text: str, most: int) -> None:
    written = latin(text, most=most)
    assert set(written) <= EPC and len(written) <= most
    assert "//" not in written and not written.startswith(("/", " ")) and not written.endswith(("/", " "))
    assert latin(written, most=most) == written


@given(st.text(max_size=60))
def test_nothing_typed_makes_a_reader_fail_in_another_way_than_by_refusing(text: str) -> None:
    for read in (details.read_iban, details.read_bic, details.read_routing, details.read_account, details.read_name):
        try:
            read(text)
        except details.Refusal as refusal:
            str(refusal)
