"""The endpoints: what a renter has and pays, and what a provider earns. All of them read; repeating any is harmless."""

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.http import Http404
from django.shortcuts import get_object_or_404
from django.urls import reverse
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from billing import bills, metering, revenue
from billing.models import Statement
from gpunex.kit.money import as_decimal_string
from gpunex.kit.time import day_start, days_between, iso_z, zone
from gpunex.policy.models import Policy
from marketplace import quotes
from marketplace.api import shapes
from marketplace.api.base import Endpoint
from marketplace.models import Listing, Rental, RentalGpu
from payouts import methods, runs

CURRENCY = "USDC"
_ERRORS = {status: shapes.ErrorAnswer for status in (401, 403, 422, 429)}


def usdc(micro: int | None) -> str | None:
    return None if micro is None else as_decimal_string(micro)


class Balance(Endpoint):
    """GET /api/v1/balance: what the organisation has, uses, and until when it lasts."""

    @extend_schema(responses={200: shapes.BalanceAnswer, **_ERRORS})
    def get(self, request: Request) -> Response:
        self.query(shapes.NoQuery, request)
        position = metering.position(self.organisation, at=self.at)
        return Response(
            {
                "at": iso_z(self.at),
                "currency": CURRENCY,
                "posted": usdc(position.posted_micro),
                "accruing": usdc(position.accruing_micro),
                "available": usdc(position.available_micro),
                "per_hour": usdc(position.burn_micro_per_hour),
                "lasts_until": iso_z(position.funded_until),
                "running": Rental.objects.filter(organisation=self.organisation.pk, state=Rental.State.RUNNING).count(),
            }
        )


class Quotes(Endpoint):
    """GET /api/v1/quotes: what an offer costs now, by the arithmetic that would bill it, and what the balance says to it."""

    @extend_schema(
        parameters=[shapes.QuoteQuery],
        responses={200: shapes.QuoteAnswer, **_ERRORS, 404: shapes.ErrorAnswer, 409: shapes.ErrorAnswer},
    )
    def get(self, request: Request) -> Response:
        wanted = self.query(shapes.QuoteQuery, request)
        listings = Listing.objects.exclude(state=Listing.State.RETIRED).select_related("machine__provider")
        quote = quotes.quote(
            listing=get_object_or_404(listings, public_id=wanted["listing"]),
            gpu_count=wanted["gpu_count"],
            organisation=self.organisation,
            at=self.at,
            stop_after_seconds=wanted.get("hours"),
            spend_at_most_micro=wanted.get("spend_at_most"),
        )
        return Response(_quote(quote))


def _quote(quote: quotes.Quote) -> dict[str, Any]:
    funds, end = quote.funds, quote.end
    assert funds is not None  # an organisation asked
    seconds = [quotes.HOUR, quotes.DAY, *([quote.stop_after_seconds] if quote.stop_after_seconds else [])]
    return {
        "at": iso_z(quote.at),
        "currency": CURRENCY,
        "listing": str(quote.listing.public_id),
        "gpu_count": quote.gpu_count,
        "price_per_gpu_hour": usdc(quote.price_micro),
        "price_per_hour": usdc(quote.rate_micro_per_hour),
        "fee_bps": quote.fee_bps,
        "fee_borne_by": "provider",
        "costs": [
            {"seconds": each, "amount": usdc(quote.cost_micro(each)), "fee": usdc(quote.fee_micro(each))}
            for each in seconds
        ],
        "most": usdc(quote.most_micro),
        "ends_after_seconds": end.seconds if end else None,
        "ends_by": end.by if end else None,
        "hours_end_at": iso_z(quote.window_until),
        "balance": {
            "available": usdc(funds.available_micro),
            "needed_to_start": usdc(funds.needed_micro),
            "missing": usdc(funds.short_micro),
            "other_rentals_per_hour": usdc(funds.others_micro_per_hour),
            "lasts_seconds": funds.lasts_seconds,
            "lasts_until": iso_z(funds.lasts_until),
        },
    }


class Rentals(Endpoint):
    """GET /api/v1/rentals: the organisation's rentals, the newest first."""

    @extend_schema(parameters=[shapes.RentalsQuery], responses={200: shapes.paged(shapes.RentalAnswer), **_ERRORS})
    def get(self, request: Request) -> Response:
        wanted = self.query(shapes.RentalsQuery, request)
        found = _rentals(self).filter(**({"state": wanted["state"]} if "state" in wanted else {}))
        offline = Policy.load().offline_seconds
        return self.page(found, wanted, lambda row: _rental(row, at=self.at, offline_seconds=offline))


class OneRental(Endpoint):
    """GET /api/v1/rentals/<id>: one of them, with its GPUs and its bill line by line. 404 for another's."""

    @extend_schema(responses={200: shapes.OneRentalAnswer, **_ERRORS, 404: shapes.ErrorAnswer})
    def get(self, request: Request, public_id: UUID) -> Response:
        self.query(shapes.NoQuery, request)
        rental = _rentals(self).filter(public_id=public_id).first()
        if rental is None:
            raise Http404
        gpus = RentalGpu.objects.filter(rental=rental).select_related("gpu").order_by("position")
        lines = bills.stretches(rental.meter) if rental.meter else []
        return Response(
            _rental(rental, at=self.at, offline_seconds=Policy.load().offline_seconds)
            | {
                "gpus": [{"index": row.gpu.index, "uuid": row.gpu.uuid} for row in gpus],
                "lines": [
                    {
                        "start": iso_z(line.starts_at),
                        "end": iso_z(line.ends_at),
                        "seconds": line.seconds,
                        "amount": usdc(line.gross_micro),
                        "posted": line.posted,
                    }
                    for line in lines
                ],
            }
        )


def _rentals(endpoint: Endpoint) -> Any:
    mine = Rental.objects.with_work().filter(organisation=endpoint.organisation.pk)
    return mine.order_by("-created_at", "-pk")


def _rental(rental: Rental, *, at: datetime, offline_seconds: int) -> dict[str, Any]:
    meter = rental.meter
    came_to = metering.accrued(meter) if meter else metering.Accrued(seconds=0, gross_micro=0, fee_micro=0)
    posted = meter.billed_gross_micro if meter else 0
    billing = rental.billing_at(at, offline_seconds=offline_seconds)
    return {
        "id": str(rental.public_id),
        "state": rental.state,
        "billable": billing.billed,
        "billable_code": billing.value,
        "billable_reason": str(billing.label),
        "cause": rental.cause,
        "provider_fault": rental.provider_fault,
        "listing": str(rental.listing.public_id),
        "model": rental.listing.gpu_model.name,
        "machine": rental.job.workload.machine.name,
        "image": rental.request.image,
        "gpu_count": rental.gpu_count,
        "price_per_gpu_hour": usdc(rental.price_micro),
        "price_per_hour": usdc(rental.rate_micro_per_hour),
        "fee_bps": rental.fee_bps,
        "created_at": iso_z(rental.created_at),
        "running_at": iso_z(rental.running_at),
        "stop_asked_at": iso_z(rental.stop_asked_at),
        "ended_at": iso_z(rental.ended_at),
        "seconds": came_to.seconds,
        "charged": usdc(came_to.gross_micro),
        "posted": usdc(posted),
        "accruing": usdc(came_to.gross_micro - posted),
        "fee": usdc(came_to.fee_micro),
        "given_back": usdc(meter.refunded_micro if meter else 0),
    }


class Earnings(Endpoint):
    """GET /api/v1/earnings: what a provider earned in the present payout period, or between two days of a time zone."""

    @extend_schema(parameters=[shapes.EarningsQuery], responses={200: shapes.EarningsAnswer, **_ERRORS})
    def get(self, request: Request) -> Response:
        self.provider()
        wanted = self.query(shapes.EarningsQuery, request)
        where = zone(wanted.get("zone") or ("UTC" if "from" not in wanted else request.user.timezone))
        if "from" in wanted:
            start, end = day_start(wanted["from"], where), day_start(wanted["to"], where)
        else:
            cadence = methods.cadence_of(self.organisation).cadence
            end = runs.next_period_end(cadence, self.at)
            start = runs.period_start(cadence, end)
        earned = revenue.of(self.organisation, start=start, end=end, at=self.at, where=where)
        shown = min(end, max(start, self.at) + timedelta(microseconds=1))
        return Response(
            {
                "at": iso_z(self.at),
                "currency": CURRENCY,
                "zone": where.key,
                "start": iso_z(start),
                "end": iso_z(end),
                "posted": _amounts(earned.posted),
                "accruing": _amounts(earned.accruing),
                "other": usdc(earned.other_micro),
                "earned": usdc(earned.earned_micro),
                "per_hour": usdc(metering.earning(self.organisation, at=self.at).rate_micro_per_hour),
                "days": [
                    {"day": day.isoformat(), "earned": usdc(earned.days.get(day, 0))}
                    for day, _start, _end in days_between(start, shown, where)
                ],
                "models": [{"model": model, **_amounts(amounts)} for model, amounts in sorted(earned.models.items())],
                "units": [
                    {
                        "model": unit.model,
                        "machine": unit.machine,
                        "index": unit.index,
                        "gpu": unit.id,
                        **_amounts(amounts),
                    }
                    for unit, amounts in sorted(
                        earned.units.items(), key=lambda row: (row[0].machine, row[0].index, row[0].id, row[0].model)
                    )
                ],
            }
        )


def _amounts(amounts: revenue.Amounts) -> dict[str, Any]:
    return {
        "renters_paid": usdc(amounts.gross_micro),
        "fee": usdc(amounts.fee_micro),
        "earned": usdc(amounts.net_micro),
        "gpu_seconds": amounts.seconds,
    }


class Statements(Endpoint):
    """GET /api/v1/statements: the organisation's statements, the newest first, each with where to get it."""

    @extend_schema(parameters=[shapes.PageQuery], responses={200: shapes.paged(shapes.StatementAnswer), **_ERRORS})
    def get(self, request: Request) -> Response:
        wanted = self.query(shapes.PageQuery, request)
        found = Statement.objects.filter(organisation=self.organisation.pk).defer("body")
        return self.page(found.order_by("-issued_at", "-pk"), wanted, self._statement)

    def _statement(self, statement: Statement) -> dict[str, Any]:
        return {
            "id": str(statement.public_id),
            "number": statement.full_number,
            "kind": statement.kind,
            "period_start": iso_z(statement.period_start),
            "period_end": iso_z(statement.period_end),
            "issued_at": iso_z(statement.issued_at),
            "sha256": statement.sha256,
            "links": {
                name: self.request.build_absolute_uri(reverse(to, args=[statement.public_id]))
                for name, to in (
                    ("page", "billing:statement"),
                    ("csv", "billing:statement_csv"),
                    ("pdf", "billing:statement_pdf"),
                    ("json", "billing:statement_json"),
                )
            },
        }
