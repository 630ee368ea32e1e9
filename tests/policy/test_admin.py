"""The policy's page: limits are one administrator's to move, and every administrator's to know."""

import pytest
from django.test import Client
from django.urls import reverse

from gpunex.kit.secrets import decrypt
from gpunex.outbox.models import Message
from gpunex.policy.models import Policy
from tests.billing.conftest import person
from tests.billing.test_views import BACKEND


@pytest.mark.django_db
def test_every_administrator_is_told_who_moved_a_limit_of_payouts_from_what_to_what() -> None:
    admin, watcher = (person(name, is_staff=True, is_superuser=True) for name in ("admin", "watcher"))
    client = Client()
    client.force_login(admin, backend=BACKEND)
    url = reverse("admin:policy_policy_change", args=[Policy.load().pk])
    form = client.get(url).context["adminform"].form
    fields = {name: form[name].value() for name in form.fields}
    fields = {
        name: form.fields[name].prepare_value(value) for name, value in fields.items() if value not in (None, False)
    }
    assert client.post(url, fields | {"review_days_most": "4"}).status_code == 302
    assert not Message.objects.exists(), "it moves no money"
    assert client.post(url, fields | {"review_days_most": "4", "payout_cap_micro": "9000000"}).status_code == 302
    assert Policy.load().payout_cap_micro == 9_000_000_000_000
    mail = Message.objects.get(to=watcher.email)
    assert "limits were changed" in mail.subject
    text = str(decrypt(mail.body or b""))
    assert admin.email in text and "10000.00 → 9000000.00" in text
