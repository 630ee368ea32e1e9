"""Starting a rental: everything is looked at again under locks, then given or refused; what follows is ``lifecycle``.

What is shown on a page may be seconds old. Under the lock of the machine, then the listing, then the payer, this reads the
truth: the host is connected and not hidden, it is within its declared hours, the price is the one that was shown, the
cards are free and sound, and the balance carries an hour of all that the payer runs. Price, fee, tier and hours are copied.
"""

from datetime import datetime

from django.db import transaction
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from billing import metering
from gpunex.accounts.models import Organisation, User
from gpunex.kit.refusals import Refusal
from gpunex.kit.secrets import encrypt
from gpunex.kit.show import price as price_text
from gpunex.policy.models import Policy, TierPolicy
from marketplace import limits, listings
from marketplace.containers import parse_image, refuse_newer_cuda
from marketplace.lifecycle import ask_to_stop, end_overdue, heard, prove
from marketplace.models import Job, Listing, ModelPrice, Rental, RentalGpu, Request
from providers import claims, maintenance, workloads
from providers.claims import GpusTaken
from providers.models import Gpu, GpuClaim, Workload
from providers.schedules import window_around

__all__ = [
    "KeyReused",
    "NotOffered",
    "PriceChanged",
    "TooManyGpus",
    "ask_to_stop",
    "end_overdue",
    "heard",
    "pending_rates",
    "prove",
    "start_rental",
]


class NotOffered(Refusal):
    code = "not_offered"
    message = _("This offer cannot be rented now: %(why)s. Nothing was charged.")


class PriceChanged(Refusal):
    code = "price_changed"
    message = _(
        "The price changed from %(expected)s to %(price)s USDC per GPU per hour while you were looking. Rent again to accept it."
    )


class TooManyGpus(Refusal):
    code = "too_many_gpus"
    message = _("GPUs asked for: %(wanted)s. Free here now: %(free)s. Nothing was charged.")


class KeyReused(Refusal):
    code = "key_reused"
    message = _("This key was used for another rental. Open the offer again.")


@transaction.atomic
def start_rental(
    *,
    organisation: Organisation,
    by: User,
    listing: Listing,
    gpu_count: int,
    image: str,
    command: list[str],
    environment: dict[str, str],
    stop_after_seconds: int | None,
    spend_at_most_micro: int | None,
    key: str,
    expected_price_micro: int,
    at: datetime,
) -> Rental:
    """Give free GPUs of ``listing`` to ``organisation`` at the price it has now, and want the container run there.

    The meter opens once it runs. The same ``key`` again returns the same rental. Refusals write nothing: ImageNotValid,
    CudaTooOld, LimitNotValid, NotOffered, PriceChanged, TooManyGpus, GpusTaken, NotEnoughMoney, KeyReused.
    """
    reference = parse_image(image)
    claims.lock_machines({listing.machine_id})
    # All listings of the machine, as a refresh of them takes them: in one order.
    list(
        Listing.objects.select_for_update(no_key=True)
        .filter(machine=listing.machine_id)
        .order_by("pk")
        .values_list("pk", flat=True)
    )
    listing = Listing.objects.select_related("machine__provider__organisation", "gpu_model").get(pk=listing.pk)
    metering.lock_payer(organisation)
    repeated = Request.objects.filter(organisation=organisation, key=key).first()
    if repeated is not None:
        return _same_rental(repeated, listing=listing, gpu_count=gpu_count, image=reference.text, command=command)
    machine = listing.machine
    refuse_newer_cuda(reference, machine.cuda_version)
    price, window_until = _terms(listing, at=at)
    if price != expected_price_micro:
        raise PriceChanged(expected=price_text(expected_price_micro), price=price_text(price))
    rate = price * gpu_count
    limits.check(
        stop_after_seconds=stop_after_seconds, spend_at_most_micro=spend_at_most_micro, rate_micro_per_hour=rate
    )
    gpus = _choose(listing, count=gpu_count, at=at)
    metering.check_runway(
        organisation=organisation, extra_rate_micro_per_hour=rate, pending_rates=pending_rates(organisation), at=at
    )

    request = Request.objects.create(
        organisation=organisation,
        created_by=by,
        key=key,
        image=reference.text,
        command=command,
        environment=encrypt(environment) if environment else None,
        gpu_count=gpu_count,
        gpu_model=listing.gpu_model,
        highest_price_micro=price,
        stop_after_seconds=stop_after_seconds,
        spend_at_most_micro=spend_at_most_micro,
        created_at=at,
    )
    rental = Rental.objects.create(
        request=request,
        organisation=organisation,
        listing=listing,
        provider=machine.provider,
        price_micro=price,
        fee_bps=TierPolicy.of(machine.tier).fee_bps,
        tier=machine.tier,
        window_until=window_until,
        gpu_count=gpu_count,
        created_at=at,
    )
    claims.claim_gpus(gpus=gpus, kind=GpuClaim.Kind.RENTAL, reference=rental.public_id, at=at)
    RentalGpu.objects.bulk_create(
        [RentalGpu(rental=rental, gpu=gpu, position=position) for position, gpu in enumerate(gpus)]
    )
    spec = {"image": reference.text, "command": command or None, "env": environment, "shm_mib": None}
    workload = workloads.assign(
        machine=machine, kind=Workload.Kind.JOB, spec=spec, gpus=gpus, stop_at=window_until, at=at
    )
    Job.objects.create(rental=rental, workload=workload)
    listings.refresh(at=at, machines=[machine])
    return rental


def _same_rental(request: Request, *, listing: Listing, gpu_count: int, image: str, command: list[str]) -> Rental:
    """The rental that this key started. A key that comes back with another wish is a mistake, not a repeat."""
    rental = request.rentals.order_by("pk").first()
    if rental is None or (rental.listing_id, request.gpu_count, request.image, request.command) != (
        listing.pk,
        gpu_count,
        image,
        command,
    ):
        raise KeyReused
    return rental


def _terms(listing: Listing, *, at: datetime) -> tuple[int, datetime | None]:
    """The price, and the end of the declared hours or the next maintenance, as they are now. The listing's copies are not believed."""
    machine = listing.machine
    current = ModelPrice.objects.filter(provider=machine.provider, gpu_model=listing.gpu_model, current=True).first()
    price = current.price_micro if current else None
    connected = machine.is_connected(at, Policy.load().offline_seconds)
    opens, closes = window_around(machine, at)
    why: str | Promise | None = None
    if machine.retired_at is not None:
        why = _("the host left")
    elif not connected:
        why = _("the host is offline")
    elif machine.is_unsettled(at):
        why = _("its connection keeps breaking")
    elif listings.kept_back(machine):
        why = _("its provider hides it")
    elif maintenance.begun(maintenance.of(machine, at), at):
        why = _("planned maintenance runs on it")
    elif opens is not None and opens > at:
        why = _("it is outside its hours")
    elif price is None:
        why = _("it has no price")
    if why is not None or price is None:
        raise NotOffered(why=why)
    return price, closes


def _choose(listing: Listing, *, count: int, at: datetime) -> list[Gpu]:
    """The free, measured cards of the listing with the lowest indexes."""
    free = list(
        claims.free_gpus(listing.machine, at)
        .filter(variant__model=listing.gpu_model_id, delisted_at=None, benchmarked_at__isnull=False)
        .order_by("index")
    )
    if not 1 <= count <= listing.gpus_total:
        raise TooManyGpus(wanted=count, free=len(free))
    if len(free) < count:
        # Less than was shown: somebody was faster, unless it was never shown.
        raise GpusTaken if listing.gpus_free >= count else TooManyGpus(wanted=count, free=len(free))
    return free[:count]


def pending_rates(organisation: Organisation) -> list[int]:
    """Rates of rentals that will run soon: their money is spoken for though no meter is open yet."""
    starting = Rental.objects.filter(organisation=organisation, state=Rental.State.STARTING).values_list(
        "price_micro", "gpu_count"
    )
    return [price * count for price, count in starting]
