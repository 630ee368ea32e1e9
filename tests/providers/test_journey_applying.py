"""From signing up to the approval, through the doors a person uses."""

import re
from html import unescape

import pytest
from django.test import Client
from django.urls import reverse

from gpunex.accounts.models import Notice
from gpunex.kit.secrets import decrypt
from gpunex.outbox.models import Message
from providers.models import Application, EnrolmentKey, Provider
from tests.providers.applying import person, typed

pytestmark = pytest.mark.django_db


def text_of(response) -> str:
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", " ", response.content.decode())))


@pytest.mark.spec("A1", "A2", "A3", "A5", "A6", "A7", "A8")
@pytest.mark.parametrize("language", ["en", "ar"])
def test_applying_being_asked_answering_and_being_approved(now, language):
    yusuf, ada = person("Yusuf", language=language, at=now), person("Ada", staff=True, at=now)
    browser, desk = Client(), Client()
    browser.force_login(yusuf)
    desk.force_login(ada)

    assert reverse("providers:apply") in browser.get("/roles").content.decode()
    review = browser.post("/roles/apply", typed() | {"review": "1"}).headers["Location"]
    page = browser.post(review, follow=True)
    application = Application.objects.get()
    assert page.redirect_chain[-1][0] == application.get_absolute_url()
    assert browser.get("/roles/apply").headers["Location"] == application.get_absolute_url(), (
        "while it waits there is no second form"
    )

    change = reverse("admin:providers_application_change", args=[application.pk])
    desk.post(change, {"decision": "ask", "message": "Which <i>UPS</i> is it?"})
    assert "Which <i>UPS</i> is it?" in text_of(browser.get(application.get_absolute_url())).replace("&lt;", "<")
    form = browser.get("/roles/apply").content.decode()
    assert 'name="answer"' in form
    assert 'value="Yusuf Darwish"' in form
    assert "Which &lt;i&gt;UPS&lt;/i&gt; is it?" in form

    unanswered = browser.post("/roles/apply", typed() | {"review": "1"})
    assert unanswered.status_code == 422
    assert 'id="id_answer_error"' in unanswered.content.decode()
    review = browser.post("/roles/apply", typed(company="Darwish & Sons", answer="An APC.") | {"review": "1"}).headers[
        "Location"
    ]
    browser.post(review)
    application.refresh_from_db()
    assert (application.state, application.company) == ("submitted", "Darwish & Sons")
    assert "An APC." in text_of(desk.get(change))

    desk.post(change, {"decision": "approve", "tier": "community"})
    provider = Provider.objects.get()
    assert provider.organisation == application.organisation
    token = EnrolmentKey.objects.get()
    mail = decrypt(Message.objects.get(event="application_approved_community").body)["text"]
    assert token.prefix in mail
    notice = Notice.objects.get(event="application_approved_community")
    assert token.prefix not in str(notice.data)

    page = browser.get(application.get_absolute_url())
    assert reverse("providers:install") in page.content.decode()
    assert application.events.count() == 4
    assert browser.get(reverse("accounts:notices")).status_code == 200


@pytest.mark.spec("A6")
def test_after_a_rejection_one_applies_again_with_the_old_answers(now):
    yusuf, ada = person("Yusuf", at=now), person("Ada", staff=True, at=now)
    browser, desk = Client(), Client()
    browser.force_login(yusuf)
    desk.force_login(ada)
    browser.post(browser.post("/roles/apply", typed() | {"review": "1"}).headers["Location"])
    application = Application.objects.get()
    desk.post(
        reverse("admin:providers_application_change", args=[application.pk]),
        {"decision": "reject", "message": "Too slow a line."},
    )
    page = browser.get(application.get_absolute_url())
    assert "Too slow a line." in text_of(page)
    assert "Apply again" in text_of(page)
    form = browser.get("/roles/apply").content.decode()
    for kept in ('value="Yusuf Darwish"', 'value="256"', 'value="Asia/Amman"', 'value="0.3"'):
        assert kept in form
    browser.post(browser.post("/roles/apply", typed() | {"review": "1"}).headers["Location"])
    assert sorted(Application.objects.values_list("state", flat=True)) == ["rejected", "submitted"]


@pytest.mark.spec("A6")
def test_withdrawing_is_a_question_first_and_then_done(now):
    yusuf = person("Yusuf", at=now)
    browser = Client()
    browser.force_login(yusuf)
    browser.post(browser.post("/roles/apply", typed() | {"review": "1"}).headers["Location"])
    application = Application.objects.get()
    assert "Withdraw this application?" in text_of(browser.get(application.get_absolute_url()))
    withdraw = reverse("providers:application_withdraw", args=[application.public_id])
    assert browser.get(withdraw).status_code == 405
    page = browser.post(withdraw, follow=True)
    assert "The application is withdrawn." in text_of(page)
    again = browser.post(withdraw, follow=True)
    assert again.status_code == 200
    assert application.events.filter(to_state="withdrawn").count() == 1
