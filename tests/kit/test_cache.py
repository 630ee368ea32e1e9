import pytest
from django.core.cache import cache, caches
from django.test import Client
from django.urls import reverse

from gpunex.accounts.models import User

AWAY = {"default": {"BACKEND": "gpunex.kit.cache.ForgivingRedisCache", "LOCATION": "unix:///nowhere/redis.sock"}}


@pytest.fixture
def without_redis(settings):
    settings.CACHES = AWAY
    del caches.settings  # read anew, for this test and after it
    yield
    del caches.settings


def test_what_was_kept_is_read_back():
    cache.set("here", 1, timeout=5)
    assert cache.get("here") == 1
    assert cache.incr("here") == 2
    cache.delete("here")
    assert cache.get("here", "gone") == "gone"


def test_without_redis_the_cache_is_empty_and_says_nothing_worse(without_redis):
    away = caches.create_connection("default")
    away.set("here", 1)
    assert away.get("here", "nothing") == "nothing"
    assert away.get_many(["here"]) == {}
    assert away.add("here", 1) is True


@pytest.mark.django_db
def test_people_sign_in_while_redis_is_away(client: Client, without_redis):
    user = User.objects.create_user("late@example.com", "correct-horse-77")
    user.emailaddress_set.create(email=user.email, verified=True, primary=True)
    caches["default"] = caches.create_connection("default")
    try:
        answer = client.post(reverse("account_login"), {"login": user.email, "password": "correct-horse-77"})
    finally:
        del caches["default"]
    assert answer.status_code == 302
    assert client.session["_auth_user_id"] == str(user.pk)


@pytest.mark.django_db
def test_health_says_that_redis_is_away_and_stays_up(client: Client, settings):
    settings.REDIS_URL = "unix:///nowhere/redis.sock"
    answer = client.get(reverse("health_ready"))
    assert answer.status_code == 200
    assert answer.json()["parts"]["redis"] == "away"
