"""What the endpoints read from queries, and the shapes of their answers for the OpenAPI document."""

from typing import Any

from django.utils.translation import gettext_lazy as _
from rest_framework import serializers

from gpunex.kit.money import parse_usdc
from gpunex.kit.refusals import Refusal
from gpunex.kit.time import zone
from marketplace.forms import seconds_of
from marketplace.limits import LONGEST_SECONDS, SHORTEST_SECONDS
from marketplace.models import Rental

PER_PAGE, MOST_PER_PAGE = 25, 100


def _kept(read: Any, text: str) -> Any:
    try:
        return read(text)
    except Refusal as refusal:
        raise serializers.ValidationError(str(refusal)) from None


# --- queries ---------------------------------------------------------------------------------------------------------


class NoQuery(serializers.Serializer):
    """No parameter at all."""


class PageQuery(serializers.Serializer):
    page = serializers.IntegerField(min_value=1, max_value=1_000_000, required=False)
    per_page = serializers.IntegerField(min_value=1, max_value=MOST_PER_PAGE, required=False)


class RentalsQuery(PageQuery):
    state = serializers.ChoiceField(Rental.State.choices, required=False)


class QuoteQuery(serializers.Serializer):
    listing = serializers.UUIDField()
    gpu_count = serializers.IntegerField(min_value=1, max_value=1000, default=1)
    hours = serializers.CharField(
        max_length=40, required=False, help_text=_("Hours that it may run, up to three decimals: “stop after”.")
    )
    spend_at_most = serializers.CharField(max_length=40, required=False, help_text=_("USDC, up to six decimals."))

    def validate_hours(self, text: str) -> int:
        seconds: int = _kept(seconds_of, text)
        if not SHORTEST_SECONDS <= seconds <= LONGEST_SECONDS:
            raise serializers.ValidationError(_("Between 1 minute and 366 days."))
        return seconds

    def validate_spend_at_most(self, text: str) -> int:
        micro: int = _kept(parse_usdc, text)
        if not micro:
            raise serializers.ValidationError(_("More than nothing."))
        return micro


class EarningsQuery(serializers.Serializer):
    """Half-open: from the first moment of the day ``from`` to that of the day ``to``, in ``zone``."""

    zone = serializers.CharField(
        max_length=64, required=False, help_text=_("IANA name; that of the account otherwise.")
    )

    def get_fields(self) -> dict[str, serializers.Field]:
        # "from" is no name that a class may use.
        day = {"required": False}
        return {
            "from": serializers.DateField(**day, help_text=_("First day; the present payout period without.")),
            "to": serializers.DateField(**day, help_text=_("First day after, not included.")),
            **super().get_fields(),
        }

    def validate_zone(self, name: str) -> str:
        try:
            zone(name)
        except ValueError:
            raise serializers.ValidationError(
                _("“%(typed)s” is not a time zone. One looks like Asia/Amman or Europe/Berlin.") % {"typed": name}
            ) from None
        return name

    def validate(self, data: dict[str, Any]) -> dict[str, Any]:
        first, after = data.get("from"), data.get("to")
        if (first is None) != (after is None):
            raise serializers.ValidationError({"to" if first else "from": _("Give both days, or none.")})
        if first is not None and after is not None:
            if not 0 < (after - first).days <= 366:
                raise serializers.ValidationError({"to": _("After the first day, and at most a year later.")})
            if first.year < 2000 or after.year > 9990:
                raise serializers.ValidationError({"from": _("Between the years 2000 and 9990.")})
        return data


# --- answers ---------------------------------------------------------------------------------------------------------


class Usdc(serializers.RegexField):
    """An exact amount of USDC as text."""

    def __init__(self, **options: Any) -> None:
        super().__init__(r"^-?\d+\.\d{2,6}$", **options)


class Moment(serializers.DateTimeField):
    """ISO 8601, UTC, with Z."""


class BalanceAnswer(serializers.Serializer):
    at = Moment()
    currency = serializers.CharField()
    posted = Usdc(help_text="in the ledger")
    accruing = Usdc(help_text="used since, not posted yet")
    available = Usdc(help_text="posted less accruing")
    per_hour = Usdc(help_text="what all that runs costs an hour")
    lasts_until = Moment(allow_null=True, help_text="null where nothing runs")
    running = serializers.IntegerField(help_text="rentals that run")


class CostAnswer(serializers.Serializer):
    seconds = serializers.IntegerField()
    amount = Usdc(help_text="what the renter is charged")
    fee = Usdc(help_text="the platform's part of it")


class FundsAnswer(serializers.Serializer):
    available = Usdc()
    needed_to_start = Usdc()
    missing = Usdc()
    other_rentals_per_hour = Usdc()
    lasts_seconds = serializers.IntegerField()
    lasts_until = Moment()


class QuoteAnswer(serializers.Serializer):
    at = Moment()
    currency = serializers.CharField()
    listing = serializers.UUIDField()
    gpu_count = serializers.IntegerField()
    price_per_gpu_hour = Usdc(help_text="what a rental is started with as the price that was seen")
    price_per_hour = Usdc()
    fee_bps = serializers.IntegerField()
    fee_borne_by = serializers.ChoiceField(["provider"])
    costs = CostAnswer(many=True, help_text="of an hour, of 24, and of the hours asked for")
    most = Usdc(allow_null=True, help_text="the most that can be charged under the limits asked for")
    ends_after_seconds = serializers.IntegerField(allow_null=True)
    ends_by = serializers.ChoiceField(["stop_after", "spend_at_most", "hours"], allow_null=True)
    hours_end_at = Moment(allow_null=True, help_text="when the machine's declared hours end")
    balance = FundsAnswer()


class RentalAnswer(serializers.Serializer):
    id = serializers.UUIDField()
    state = serializers.ChoiceField(Rental.State.choices)
    billable = serializers.BooleanField(help_text="whether this moment costs money")
    billable_code = serializers.CharField()
    billable_reason = serializers.CharField(help_text="why, in the language of the request")
    cause = serializers.CharField(allow_blank=True)
    provider_fault = serializers.BooleanField()
    listing = serializers.UUIDField()
    model = serializers.CharField()
    machine = serializers.CharField()
    image = serializers.CharField()
    gpu_count = serializers.IntegerField()
    price_per_gpu_hour = Usdc()
    price_per_hour = Usdc()
    fee_bps = serializers.IntegerField()
    created_at = Moment()
    running_at = Moment(allow_null=True)
    stop_asked_at = Moment(allow_null=True)
    ended_at = Moment(allow_null=True)
    seconds = serializers.IntegerField(help_text="whole seconds that are charged")
    charged = Usdc(help_text="posted and accruing")
    posted = Usdc()
    accruing = Usdc()
    fee = Usdc(help_text="the platform's part of what was charged")
    given_back = Usdc(help_text="credits and refunds of it")


class StretchAnswer(serializers.Serializer):
    start = Moment()
    end = Moment()
    seconds = serializers.IntegerField()
    amount = Usdc()
    posted = serializers.BooleanField()


class RentalGpuAnswer(serializers.Serializer):
    index = serializers.IntegerField()
    uuid = serializers.CharField()


class OneRentalAnswer(RentalAnswer):
    gpus = RentalGpuAnswer(many=True)
    lines = StretchAnswer(many=True, help_text="they sum to charged")


class AmountsAnswer(serializers.Serializer):
    renters_paid = Usdc()
    fee = Usdc()
    earned = Usdc()
    gpu_seconds = serializers.IntegerField()


class DayAnswer(serializers.Serializer):
    day = serializers.DateField()
    earned = Usdc()


class ModelAnswer(AmountsAnswer):
    model = serializers.CharField()


class UnitAnswer(ModelAnswer):
    machine = serializers.CharField()
    index = serializers.IntegerField()
    gpu = serializers.CharField()


class EarningsAnswer(serializers.Serializer):
    at = Moment()
    currency = serializers.CharField()
    zone = serializers.CharField()
    start = Moment()
    end = Moment(help_text="half-open")
    posted = AmountsAnswer()
    accruing = AmountsAnswer()
    other = Usdc(help_text="credits to renters, corrections and adjustments, signed")
    earned = Usdc(help_text="posted and accruing after the fee, and the others")
    per_hour = Usdc(help_text="what an hour of now adds")
    days = DayAnswer(many=True, help_text="of the zone; they sum to earned")
    models = ModelAnswer(many=True, help_text="they sum to posted and accruing")
    units = UnitAnswer(many=True, help_text="they sum to posted and accruing")


class StatementAnswer(serializers.Serializer):
    id = serializers.UUIDField()
    number = serializers.CharField()
    kind = serializers.CharField()
    period_start = Moment()
    period_end = Moment(help_text="half-open")
    issued_at = Moment()
    sha256 = serializers.CharField()
    links = serializers.DictField(child=serializers.URLField(), help_text="page, csv, pdf and json")


class ErrorAnswer(serializers.Serializer):
    code = serializers.CharField()
    message = serializers.CharField()
    errors = serializers.DictField(required=False)  # type: ignore[assignment]  # the contract's name for it


def paged(item: type[serializers.Serializer]) -> type[serializers.Serializer]:
    """The shape of a page of ``item``."""
    name = item.__name__.removesuffix("Answer")
    fields = {
        "items": item(many=True),
        "page": serializers.IntegerField(),
        "pages": serializers.IntegerField(),
        "total": serializers.IntegerField(),
        "next": serializers.URLField(allow_null=True),
    }
    return type(f"{name}PageAnswer", (serializers.Serializer,), fields)
