"""Health endpoints: is the process up, and can it do its work."""

import time

import redis
import structlog
from django.conf import settings
from django.contrib.auth.decorators import login_not_required
from django.core.cache import cache
from django.db import DatabaseError, connection
from django.http import HttpRequest, JsonResponse
from django.views.decorators.http import require_safe
from redis.exceptions import RedisError

from gpunex.celery import SWEEPS

log = structlog.get_logger(__name__)


@login_not_required
@require_safe
def live(request: HttpRequest) -> JsonResponse:
    """GET /health/live: the process answers. Asks nothing else, so that a slow database never restarts it."""
    return JsonResponse({"status": "ok"})


@login_not_required
@require_safe
def ready(request: HttpRequest) -> JsonResponse:
    """GET /health/ready: database, Redis and the clock. 503 only if the database is away: without Redis work goes on, later."""
    parts: dict[str, str] = {}
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
        parts["database"] = "ok"
    except DatabaseError:
        log.warning("health_database_away", exc_info=True)
        parts["database"] = "away"
    late: list[str] = []
    try:
        # Asked itself: the cache in front of it answers as an empty one while it is away.
        with redis.from_url(settings.REDIS_URL, socket_connect_timeout=2, socket_timeout=2) as client:
            client.ping()
        parts["redis"] = "ok"
        seen = cache.get_many([f"sweep:{name}" for name in SWEEPS])
        now = time.time()
        late = [
            name
            for name, sweep in SWEEPS.items()
            if now - seen.get(f"sweep:{name}", {"at": 0})["at"] > 60 + 3 * sweep.every
        ]
        parts["clock"] = "late" if late else "ok"
    except (RedisError, OSError):
        log.warning("health_redis_away", exc_info=True)
        parts["redis"] = "away"
    healthy = parts["database"] == "ok"
    return JsonResponse(
        {"status": "ok" if healthy else "away", "parts": parts, "late_sweeps": late}, status=200 if healthy else 503
    )
