"""The guide is public, in both languages, and its figures are those of the rows."""

import re
from html import unescape

import pytest
from django.conf import settings

from gpunex.policy.models import Policy, TierPolicy
from providers.models import GpuModel

pytestmark = pytest.mark.django_db
SOURCE_LINE = "curl -fsSL https://get.gpunex.com/agent | bash"


def text_of(response) -> str:
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", "", response.content.decode())))


@pytest.mark.spec("A0", "J1")
@pytest.mark.parametrize(
    ("language", "direction", "words"), [("en", "ltr", "How it is worked out"), ("ar", "rtl", "كيف يتم حساب الدرجة")]
)
def test_the_guide_is_public_in_both_languages(client, language, direction, words):
    client.cookies[settings.LANGUAGE_COOKIE_NAME] = language
    page = client.get("/guide")
    assert page.status_code == 200
    assert f'<html lang="{language}" dir="{direction}"' in page.content.decode()
    assert words in text_of(page)
    for section in (
        "overview",
        "requirements",
        "applying",
        "agent",
        "benchmarks",
        "pricing",
        "tiers",
        "earnings",
        "reliability",
    ):
        assert f'id="{section}"' in page.content.decode()


@pytest.mark.spec("A0", "K", "E1", "E2")
@pytest.mark.parametrize("language", ["en", "ar"])
def test_every_figure_is_read_from_the_rows(client, language):
    client.cookies[settings.LANGUAGE_COOKIE_NAME] = language
    before = text_of(client.get("/guide"))
    TierPolicy.objects.filter(tier="community").update(
        fee_bps=1350,
        memory_gb_per_gpu=11,
        ssd_free_gb=131,
        ssd_read_mb_s=577,
        network_mbps=170,
        benchmark_floor_bps=8300,
        uptime_floor_bps=9100,
    )
    Policy.objects.update(
        review_days_least=2,
        review_days_most=9,
        weekly_minimum_micro=23_000_000,
        monthly_minimum_micro=7_000_000,
        score_window_days=77,
    )
    GpuModel.objects.create(slug="b200", name="B200 180GB", vram_gib=180, klass="datacenter")
    after = text_of(client.get("/guide"))
    for figure in (
        "86.5 %",
        "13.5 %",
        "11 GB",
        "131 GB",
        "577 MB/s",
        "0.17 Gbps",
        "83 %",
        "91 %",
        "23.00 USDC",
        "7.00 USDC",
        "77",
        "B200 180GB",
    ):
        assert figure in after
        assert figure not in before or figure in ("77",)
    assert re.search(r"\b2\b.{1,6}\b9\b", after)


@pytest.mark.spec("A0")
def test_the_install_line_is_this_platforms(client):
    page = text_of(client.get("/guide"))
    assert f"curl -fsSL {settings.PUBLIC_URL}/agent | bash" in page
    assert SOURCE_LINE not in page


@pytest.mark.spec("A0")
def test_roles_and_the_form_link_to_the_guide(client):
    assert 'href="/guide"' in client.get("/roles").content.decode()
