"""The application form over HTTP: adding and removing, keeping what was typed, and every refusal."""

import re
from html import unescape

import pytest
from django.test import Client
from django.urls import reverse

from gpunex.accounts.models import Membership, User
from providers.models import Application
from tests.providers.applying import organisation_of, person, typed

pytestmark = pytest.mark.django_db
APPLY = "/roles/apply"


@pytest.fixture
def yusuf(now) -> User:
    return person("Yusuf", at=now)


@pytest.fixture
def browser(yusuf) -> Client:
    client = Client()
    client.force_login(yusuf)
    return client


def text_of(response) -> str:
    return unescape(re.sub(r"<[^>]+>", "", response.content.decode()))


def error_beside(response, field: str) -> str:
    """The error texts that the field of this id points at."""
    page = response.content.decode()
    found = re.search(rf'id="id_{field}_error">(.*?)</div>', page, re.DOTALL) or re.search(
        rf'id="id_{field}_error">(.*?)</p>', page, re.DOTALL
    )
    return unescape(re.sub(r"<[^>]+>|\s+", " ", found[1])).strip() if found else ""


@pytest.mark.spec("A1")
def test_a_stranger_sees_roles_and_is_asked_to_sign_in_for_the_form():
    client = Client()
    page = client.get("/roles")
    assert page.status_code == 200
    assert APPLY in page.content.decode()
    assert client.get(APPLY).headers["Location"].startswith(reverse("account_login"))


@pytest.mark.spec("A4")
def test_the_dropdown_has_the_catalogue_by_class_and_other(browser):
    page = browser.get(APPLY).content.decode()
    for name in ("H100 80GB", "A100 40GB", "A100 80GB", "L40S 48GB", "L4 24GB", "RTX 4090 24GB", "RTX A6000 48GB"):
        assert f">{name}</option>" in page
    assert '<optgroup label="Datacenter">' in page
    assert '<option value="other">' in page


@pytest.mark.spec("A3")
def test_adding_and_removing_an_entry_keeps_what_was_typed(browser):
    more = browser.post(APPLY, typed(**{"entry-0-upload_gbps": "300M"}) | {"add": "1"})
    assert more.status_code == 200
    page = more.content.decode()
    assert page.count('class="entry"') == 3
    assert 'value="300M"' in page
    assert "is not a number" not in page, "a row more is no time to judge"
    fewer = browser.post(APPLY, typed(row=["0", "1", "2"], **{"entry-2-city": "<b>Aqaba</b>"}) | {"remove": "0"})
    page = fewer.content.decode()
    assert page.count('class="entry"') == 2
    assert "&lt;b&gt;Aqaba&lt;/b&gt;" in page
    assert 'name="entry-0-quantity"' not in page


def test_removing_the_last_entry_leaves_a_blank_one(browser):
    page = browser.post(APPLY, {"row": "0", "entry-0-quantity": "4", "remove": "0"}).content.decode()
    assert page.count('class="entry"') == 1


@pytest.mark.spec("A2", "A3", "A5", "A6")
def test_a_good_form_leads_over_the_summary_to_the_application(browser, yusuf):
    sent = browser.post(APPLY, typed() | {"review": "1"})
    application = Application.objects.get()
    assert sent.headers["Location"] == reverse("providers:application_review", args=[application.public_id])
    summary = browser.get(sent.headers["Location"])
    assert "4 × RTX A6000 48GB" in text_of(summary)
    assert "Amman, Jordan" in text_of(summary)
    assert application.state == "draft"
    done = browser.post(sent.headers["Location"], follow=True)
    application.refresh_from_db()
    assert application.state == "submitted"
    assert application.organisation == organisation_of(yusuf)
    first, second = application.entries.all()
    assert (first.gpu_model.slug, first.quantity, first.host_memory_gb, first.always_available) == (
        "rtx-a6000-48gb",
        4,
        256,
        True,
    )
    assert (second.windows, second.timezone, second.country) == ([[0, "22:00", "06:00"]], "Asia/Amman", "JO")
    assert "Submitted" in text_of(done)


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("quantity", "0", "“0” is not possible here. An entry has 1 to 5,000 GPUs."),
        ("quantity", "-1", "“-1” is not possible here. An entry has 1 to 5,000 GPUs."),
        ("quantity", "−1", "“−1” is not possible here. An entry has 1 to 5,000 GPUs."),
        ("quantity", "10000", "“10000” is not possible here. An entry has 1 to 5,000 GPUs."),
        ("quantity", "10,000", "“10,000” is not a number of GPUs. Write a whole number, like 4."),
        ("quantity", "two", "“two” is not a number of GPUs. Write a whole number, like 4."),
        ("quantity", "", "Write how many GPUs."),
        ("host_memory_gb", "256GB", "“256GB” is not a number of GB. Write a whole number, like 256."),
        ("host_memory_gb", "0", "“0” is not possible here. Write 1 to 1,000,000 GB."),
        ("download_gbps", "abc", "“abc” is not a number of Gbps. 300 Mbps is 0.3."),
        ("download_gbps", "-5", "“-5” is not a speed. Write a number above 0, like 0.3."),
        ("download_gbps", "−5", "“−5” is not a speed. Write a number above 0, like 0.3."),
        ("download_gbps", "0", "“0” is not a speed. Write a number above 0, like 0.3."),
        ("download_gbps", "1e3", "“1e3” is not a number of Gbps. 300 Mbps is 0.3."),
        ("download_gbps", "NaN", "“NaN” is not a number of Gbps. 300 Mbps is 0.3."),
        ("upload_gbps", "300M", "“300M” is not a number of Gbps. 300 Mbps is 0.3."),
        ("upload_gbps", "250 Mbps", "“250 Mbps” is not a number of Gbps. 250 Mbps is 0.25."),
        ("upload_gbps", "500", "“500” is more than 400 Gbps. 500 Mbps is 0.5."),
        ("upload_gbps", "1,5", "“1,5” can be read in two ways. Decimals stand after a point: 1.5."),
        ("upload_gbps", "0.0001", "“0.0001” has more than three decimals. 1 Mbps is 0.001."),
        ("gpu_model", "", "Choose a model, or “Other”."),
        ("gpu_model", "h999", "Choose a model of the list, or “Other”."),
        ("gpu_model", "other", ""),
        ("country", "", "Choose the country the machines stand in."),
        ("country", "ZZ", "Choose a country of the list."),
        ("timezone", "Mars/Base", "“Mars/Base” is not a time zone. One looks like Asia/Amman or Europe/Berlin."),
        (
            "timezone",
            "../../etc/passwd",
            "“../../etc/passwd” is not a time zone. One looks like Asia/Amman or Europe/Berlin.",
        ),
        ("timezone", "", "Write the time zone of these hours, like Asia/Amman."),
        ("city", "x" * 81, "Ensure this value has at most 80 characters"),
    ],
)
def test_a_refusal_stands_beside_its_field_and_keeps_what_was_typed(browser, field, value, says):
    refused = browser.post(APPLY, typed(**{f"entry-1-{field}": value}) | {"review": "1"})
    assert refused.status_code == 422
    beside = "other_model" if (field, value) == ("gpu_model", "other") else field
    assert (says or "Write the model's name as NVIDIA does.") in error_beside(refused, f"entry-1-{beside}")
    if value and field not in ("gpu_model", "country"):
        assert f'value="{value}"' in unescape(refused.content.decode())
    assert not error_beside(refused, f"entry-0-{field}")
    assert Application.objects.get().state == "draft"


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("full_name", "", "Write the legal name of the person we talk to."),
        ("email", "yusuf@", "This is not an email address. One looks like name@example.com."),
        ("email", "", "Write an email address that reaches you."),
        ("maintenance_notes", "y" * 5000, "At most 4,000 characters fit here."),
        ("commitment_months", "5", "Choose 3, 6 or 12 months."),
        ("commitment_months", "", "Choose how long the machines stay."),
    ],
)
def test_a_contact_refusal_stands_beside_its_field(browser, field, value, says):
    refused = browser.post(APPLY, typed(**{field: value}) | {"review": "1"})
    assert refused.status_code == 422
    assert says in error_beside(refused, field)


def test_an_empty_entry_says_at_each_field_what_to_write(browser):
    refused = browser.post(APPLY, typed(row=["0", "1", "2"], **{"entry-2-availability": "always"}) | {"review": "1"})
    assert refused.status_code == 422
    for field in ("gpu_model", "quantity", "host_memory_gb", "download_gbps", "upload_gbps", "country"):
        assert error_beside(refused, f"entry-2-{field}")
    assert "6 answers need a change" in text_of(refused)


def test_hours_that_are_none_and_no_hours_are_refused(browser):
    assert "Choose at least one hour" in text_of(browser.post(APPLY, typed(**{"entry-1-hours": []}) | {"review": "1"}))
    assert "not an hour of the week" in text_of(
        browser.post(APPLY, typed(**{"entry-1-hours": ["168"]}) | {"review": "1"})
    )


def test_no_entries_and_ten_thousand_are_refused(browser):
    none = browser.post(APPLY, typed(row=[]) | {"review": "1"})
    assert none.status_code == 422
    assert "at least one entry" in text_of(none)
    many = browser.post(APPLY, typed(row=[str(number) for number in range(60)]) | {"review": "1"})
    assert many.status_code == 422
    assert "at most 50 entries" in text_of(many)


@pytest.mark.spec("A4")
def test_a_model_that_is_not_in_the_catalogue_is_applied_with_in_free_text(browser):
    sent = browser.post(
        APPLY, typed(**{"entry-0-gpu_model": "other", "entry-0-other_model": "RTX <b>5090</b>"}) | {"review": "1"}
    )
    page = browser.post(sent.headers["Location"], follow=True).content.decode()
    assert "RTX &lt;b&gt;5090&lt;/b&gt;" in page
    assert "RTX <b>5090" not in page
    assert Application.objects.get().entries.first().model_name == "RTX <b>5090</b>"


def test_arabic_digits_are_numbers(browser):
    sent = browser.post(APPLY, typed(**{"entry-0-quantity": "٤", "entry-0-upload_gbps": "١٫٥"}) | {"review": "1"})
    browser.post(sent.headers["Location"])
    first = Application.objects.get().entries.first()
    assert (first.quantity, float(first.upload_gbps)) == (4, 1.5)


@pytest.mark.spec("J1")
def test_the_form_and_its_countries_speak_arabic(browser, yusuf):
    User.objects.filter(pk=yusuf.pk).update(language="ar")
    page = browser.get(APPLY).content.decode()
    assert 'dir="rtl"' in page
    assert ">الأردن</option>" in page


def test_a_preset_fills_the_hours_and_says_how_many(browser):
    page = browser.post(APPLY, typed() | {"preset": "0:nights"})
    assert "84 hours a week" in text_of(page)
    assert "00–08, 20–24" in text_of(page)


def test_the_draft_is_kept_with_what_is_no_answer_yet(browser):
    browser.post(APPLY, typed(**{"entry-0-quantity": "four"}) | {"save": "1"})
    assert Application.objects.get().state == "draft"
    assert 'value="four"' in browser.get(APPLY).content.decode()
    assert "Continue the application" in text_of(browser.get("/roles"))


@pytest.mark.spec("E1", "K")
def test_the_check_beside_the_form_says_what_each_tier_misses(browser):
    fit = browser.post(APPLY, typed() | {"check": "1"}, headers={"HX-Request": "true"})
    page = text_of(fit)
    assert "<html" not in fit.content.decode()
    assert "HX-Request" in fit.headers["Vary"]
    assert "entry 2: RTX 4090 24GB is a consumer model" in page
    assert "entry 2: 8 of 168 hours a week" in page
    assert "entry 2: download 0.6 Gbps, upload 0.3 Gbps" in page
    assert "Entry 1 alone meets every enterprise requirement." in page


@pytest.mark.spec("A6")
def test_the_same_page_sent_twice_makes_one_application(browser):
    token = re.search(r'name="form_token" value="([^"]+)"', browser.get(APPLY).content.decode())[1]
    sent = browser.post(APPLY, typed() | {"review": "1", "form_token": token})
    browser.post(sent.headers["Location"])
    again = browser.post(sent.headers["Location"])
    back = browser.post(APPLY, typed() | {"review": "1", "form_token": token})
    application = Application.objects.get()
    assert again.headers["Location"] == back.headers["Location"] == application.get_absolute_url()
    assert application.events.count() == 1


def test_another_organisations_application_is_not_there(browser, now):
    other = person("Mallory", at=now)
    browser.post(APPLY, typed() | {"save": "1"})
    application = Application.objects.get()
    stranger = Client()
    stranger.force_login(other)
    for name in ("application", "application_review"):
        assert stranger.get(reverse(f"providers:{name}", args=[application.public_id])).status_code == 404
    assert stranger.post(reverse("providers:application_withdraw", args=[application.public_id])).status_code == 404
    application.refresh_from_db()
    assert application.state == "draft"


def test_a_draft_is_discarded_and_its_answers_wait_for_the_next_time(browser):
    browser.post(APPLY, typed() | {"save": "1"})
    first = Application.objects.get()
    browser.post(reverse("providers:application_withdraw", args=[first.public_id]))
    assert 'value="Yusuf Darwish"' in browser.get(APPLY).content.decode()
    browser.post(APPLY, typed() | {"save": "1"})
    assert Application.objects.count() == 2


@pytest.mark.parametrize("role", ["viewer", "billing"])
def test_who_only_looks_or_pays_does_not_apply_for_the_organisation(browser, yusuf, role):
    Membership.objects.filter(user=yusuf).update(role=role)
    assert browser.get(APPLY).status_code == 403
    assert browser.post(APPLY, typed() | {"save": "1"}).status_code == 403
    assert not Application.objects.exists()
    assert browser.get("/roles").status_code == 200


def test_a_press_that_is_no_button_of_the_page_changes_nothing_it_should_not(browser):
    for odd in (
        {"remove": "77"},
        {"preset": "77:nights"},
        {"preset": "x"},
        {"add": "1", "row": ["a", "-1", "99999"]},
        {"form_token": "no"},
    ):
        assert browser.post(APPLY, typed() | odd).status_code in (200, 302, 422)
    assert Application.objects.count() == 1


def test_the_form_stays_within_its_queries(browser, django_assert_max_num_queries):
    browser.get(APPLY)
    with django_assert_max_num_queries(25):
        browser.get(APPLY)
