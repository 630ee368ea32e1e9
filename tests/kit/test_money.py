import pytest
from django.core.exceptions import ValidationError
from hypothesis import given
from hypothesis import strategies as st

from gpunex.kit.money import LARGEST_MICRO, NotAnAmount, UsdcField, as_decimal_string, parse_usdc


@pytest.mark.parametrize(
    ("text", "micro"),
    [
        ("0", 0),
        ("1", 1_000_000),
        ("2.05", 2_050_000),
        (" 1.5 ", 1_500_000),
        ("0.000001", 1),
        ("1.000000", 1_000_000),
        ("١٫٥", 1_500_000),
        ("007.10", 7_100_000),
    ],
)
def test_an_amount_that_means_one_thing_is_read(text, micro):
    assert parse_usdc(text) == micro


@pytest.mark.parametrize(
    "text",
    ["", " ", "1e3", "NaN", "inf", "-5", "+5", "1,5", "1.0000001", ".5", "5.", "1 000", "0x10", "²", "12$", "1" * 13],
)
def test_an_amount_that_could_mean_anything_else_is_refused(text):
    with pytest.raises(NotAnAmount) as refused:
        parse_usdc(text)
    assert "12.50" in str(refused.value)


@pytest.mark.case("money-F20")
@pytest.mark.parametrize(
    ("text", "micro"),
    [("2.01", 2_010_000), ("2.05", 2_050_000), ("4.02", 4_020_000), ("1.005", 1_005_000), ("4.1", 4_100_000)],
)
def test_cents_that_floats_get_wrong_are_exact(text, micro):
    assert parse_usdc(text) == micro


def test_a_float_is_never_an_amount():
    with pytest.raises(TypeError):
        parse_usdc(1.5)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        UsdcField().get_prep_value(1.5)


def test_a_form_takes_usdc_and_shows_it_so():
    field = UsdcField().formfield()
    assert field.clean("10000.50") == 10_000_500_000
    assert field.prepare_value(10_000_500_000) == "10000.50"
    assert not field.has_changed(5_000_000, "5.00")
    assert field.has_changed(5_000_000, "50.00")
    with pytest.raises(ValidationError, match=r"12\.50"):
        field.clean("5,00")


@given(st.integers(min_value=0, max_value=LARGEST_MICRO))
def test_what_is_written_is_read_back_to_the_last_micro(micro):
    assert parse_usdc(as_decimal_string(micro)) == micro


@pytest.mark.parametrize(
    ("micro", "text"),
    [(0, "0.00"), (1, "0.000001"), (2_050_000, "2.05"), (-2_500_000, "-2.50"), (1_234_567, "1.234567")],
)
def test_decimal_strings_have_two_decimals_or_all_they_need(micro, text):
    assert as_decimal_string(micro) == text
