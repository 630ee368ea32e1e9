"""Planned maintenance: off the market from its start, crossed by no new rental, and told to whoever runs on it."""

from datetime import datetime, timedelta

import pytest

from gpunex.accounts.models import Notice, Organisation
from gpunex.outbox.models import Message
from marketplace import listings, maintenance, quotes, rentals
from marketplace.models import Listing
from providers import declarations, fleet
from providers.models import MaintenanceWindow
from providers.schedules import window_around
from tests.marketplace.conftest import rent

pytestmark = pytest.mark.django_db
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)


def announce(listing: Listing, *, at: datetime, after: timedelta = 30 * HOUR, hours: int = 2) -> MaintenanceWindow:
    window = declarations.declare_maintenance(
        machine=listing.machine, starts_at=at + after, ends_at=at + after + hours * HOUR, reason="Fans", by=None, at=at
    )
    listings.refresh(machines=[listing.machine], at=at)
    listing.refresh_from_db()
    return window


def seen(listing: Listing, at: datetime) -> Listing:
    type(listing.machine).objects.filter(pk=listing.machine_id).update(last_seen_at=at)
    listings.refresh(machines=[listing.machine], at=at)
    listing.refresh_from_db()
    return listing


@pytest.mark.case("marketplace-44")
@pytest.mark.spec("A5")
def test_the_offer_ends_where_maintenance_begins_and_is_hidden_until_its_end(listing: Listing, noon: datetime) -> None:
    window = announce(listing, at=noon)
    assert listing.offered_until == window.starts_at
    assert listing.state == Listing.State.OFFERED
    assert window_around(listing.machine, noon)[1] == window.starts_at
    during = window.starts_at + MINUTE
    assert seen(listing, during).state == Listing.State.HIDDEN
    assert not Listing.objects.open(during).exists()
    assert window_around(listing.machine, during)[0] == window.ends_at
    [host] = fleet.read(provider=listing.machine.provider, offline_seconds=45, at=during).hosts
    assert host.hidden == fleet.Hidden.MAINTENANCE
    assert seen(listing, window.ends_at).state == Listing.State.OFFERED
    assert listing.offered_until is None


@pytest.mark.case("marketplace-44")
def test_a_new_rental_ends_before_it_and_none_starts_during_it(
    listing: Listing, renter: Organisation, noon: datetime
) -> None:
    window = announce(listing, at=noon)
    rental = rent(renter, listing, at=noon)
    assert rental.window_until == window.starts_at
    assert rental.job.workload.stop_at == window.starts_at
    during = window.starts_at + MINUTE
    seen(listing, during)
    with pytest.raises(rentals.NotOffered):
        rent(renter, listing, at=during, key="another")


def test_the_quote_knows_of_it(listing: Listing, renter: Organisation, noon: datetime) -> None:
    window = announce(listing, at=noon)
    quote = quotes.quote(
        listing=listing, gpu_count=1, organisation=renter, stop_after_seconds=None, spend_at_most_micro=None, at=noon
    )
    assert quote.window_until == window.starts_at


def test_a_cancelled_window_is_none(listing: Listing, noon: datetime) -> None:
    window = announce(listing, at=noon)
    declarations.cancel_maintenance(window=window, at=noon + MINUTE)
    assert seen(listing, noon + MINUTE).offered_until is None


@pytest.mark.case("marketplace-44")
def test_who_runs_on_it_already_is_warned_once(listing: Listing, renter: Organisation, noon: datetime) -> None:
    rental = rent(renter, listing, at=noon)
    window = announce(listing, at=noon + MINUTE)
    maintenance.warn(at=noon + MINUTE)
    assert not Notice.objects.filter(event="marketplace.maintenance").exists()  # more than a day away
    soon = window.starts_at - 20 * HOUR
    assert maintenance.warn(at=soon) == 1
    maintenance.warn(at=soon + HOUR)
    notice = Notice.objects.get(event="marketplace.maintenance")
    assert (notice.organisation, notice.data["rental"]) == (renter, str(rental.public_id))
    assert Message.objects.filter(event="marketplace.maintenance").count() == 1


def test_a_rental_that_ends_before_it_is_not_warned(listing: Listing, renter: Organisation, noon: datetime) -> None:
    window = announce(listing, at=noon)
    rent(renter, listing, at=noon)
    assert maintenance.warn(at=window.starts_at - HOUR) == 0
