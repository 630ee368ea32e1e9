import pytest
from django.test import Client
from django.urls import reverse

from gpunex.sweeps import run_now

pytestmark = pytest.mark.django_db
TOKEN = "a-token-of-prometheus"


def test_without_the_token_the_address_does_not_exist(client: Client, settings):
    assert client.get(reverse("metrics")).status_code == 404
    settings.METRICS_TOKEN = TOKEN
    assert client.get(reverse("metrics")).status_code == 404
    assert client.get(reverse("metrics"), headers={"Authorization": "Bearer wrong"}).status_code == 404


def test_it_tells_what_waits_and_how_late_the_clock_is(client: Client, settings):
    settings.METRICS_TOKEN = TOKEN
    run_now("mail")
    text = client.get(reverse("metrics"), headers={"Authorization": f"Bearer {TOKEN}"}).content.decode()
    assert "gpunex_payouts_in_review 0.0" in text
    assert "gpunex_mails_waiting 0.0" in text
    assert 'gpunex_sweep_age_seconds{sweep="mail"}' in text
