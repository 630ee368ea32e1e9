"""The team's view of the market: to read, never to edit."""

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from marketplace.models import Listing
from tests.marketplace.conftest import USDC, offer, person, rent, renter_with


@pytest.mark.parametrize("model", ["listing", "modelprice", "rental"])
def test_rows_are_listed_and_cannot_be_changed(db: None, model: str):
    at = timezone.now()
    rent(renter_with(10 * USDC, at=at), offer(at=at), at=at)
    client = Client()
    client.force_login(
        person("admin", is_staff=True, is_superuser=True), backend="django.contrib.auth.backends.ModelBackend"
    )
    page = client.get(reverse(f"admin:marketplace_{model}_changelist"))
    assert page.status_code == 200
    assert client.get(reverse(f"admin:marketplace_{model}_add")).status_code == 403
    row = Listing.objects.get() if model == "listing" else None
    if row is not None:
        assert (
            client.post(reverse("admin:marketplace_listing_change", args=[row.pk]), {"price_micro": 1}).status_code
            == 403
        )
