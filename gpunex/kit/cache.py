"""The cache of the product: Redis, and nothing at all while Redis is away. What it holds is never the only copy.

So a sign-in, a page and a sweep go on without it: rate limits and remembered figures are missing for that while, and the
lock against password guessing, which counts in the database, is not.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

import structlog
from django.core.cache.backends.redis import RedisCache
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

log = structlog.get_logger(__name__)
_AWAY = (RedisConnectionError, RedisTimeoutError, OSError)


def _or_nothing(method: Callable[..., Any], nothing: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def call(self: RedisCache, *args: Any, **kwargs: Any) -> Any:
        try:
            return method(self, *args, **kwargs)
        except _AWAY as error:
            log.warning("cache_away", operation=method.__name__, error=str(error))
            return nothing(*args, **kwargs)

    return call


class ForgivingRedisCache(RedisCache):
    """Answers as an empty cache does while the server cannot be reached; every other error is raised."""

    add = _or_nothing(RedisCache.add, lambda *args, **kwargs: True)
    get = _or_nothing(RedisCache.get, lambda key, default=None, version=None: default)
    set = _or_nothing(RedisCache.set, lambda *args, **kwargs: None)
    touch = _or_nothing(RedisCache.touch, lambda *args, **kwargs: False)
    delete = _or_nothing(RedisCache.delete, lambda *args, **kwargs: False)
    get_many = _or_nothing(RedisCache.get_many, lambda *args, **kwargs: {})
    set_many = _or_nothing(RedisCache.set_many, lambda data, *args, **kwargs: list(data))
    delete_many = _or_nothing(RedisCache.delete_many, lambda *args, **kwargs: None)
    has_key = _or_nothing(RedisCache.has_key, lambda *args, **kwargs: False)
    incr = _or_nothing(RedisCache.incr, lambda key, delta=1, version=None: delta)
