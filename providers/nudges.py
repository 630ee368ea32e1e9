"""Hints that wake a waiting machine: "what you should run has changed, read it again".

A hint carries no data and may be lost: the machine's revision in the database is the truth, and a wait that hears nothing
ends by itself. Redis away costs seconds, never work.
"""

import asyncio
import contextlib
import weakref
from collections import defaultdict
from collections.abc import Iterator
from functools import cache, partial
from uuid import UUID

import redis
import redis.asyncio
import structlog
from django.conf import settings
from django.db import transaction
from redis.asyncio.client import PubSub
from redis.exceptions import RedisError

log = structlog.get_logger(__name__)
PREFIX = "machine:"
POLL_SECONDS = 2.0  # how often a waiter looks by itself while Redis is away
_ALIVE_SECONDS = 15.0  # a subscription that says nothing for so long is asked whether it still stands


def channel(machine_id: UUID) -> str:
    return f"{PREFIX}{machine_id}"


def nudge(machine_id: UUID) -> None:
    """Wake who waits for ``machine_id`` once the transaction at hand is committed; at once if there is none."""
    transaction.on_commit(partial(_publish, machine_id), robust=True)


def _publish(machine_id: UUID) -> None:
    try:
        _client().publish(channel(machine_id), b"")
    except (RedisError, OSError) as error:
        log.warning("nudge_not_sent", machine=str(machine_id), error=str(error))


@cache
def _client() -> redis.Redis:
    # Connections to a host that is gone must not hold up the operation that has just been committed.
    return redis.Redis.from_url(settings.REDIS_URL, socket_timeout=1, socket_connect_timeout=1)


class Listener:
    """One subscription for all waiters of an event loop, so that a thousand of them cost one connection.

    It begins with the first waiter and lives as long as the loop. Whenever it connects or loses its connection every
    waiter is woken, since hints may have been missed; waiters then read and decide for themselves.
    """

    def __init__(self) -> None:
        self.connected = False
        self._waiting: dict[str, set[asyncio.Event]] = defaultdict(set)
        self._reader: asyncio.Task[None] | None = None

    @contextlib.contextmanager
    def listening(self, machine_id: UUID) -> Iterator[asyncio.Event]:
        """An event that is set by each hint from here on. Enter it before reading what the hint is about."""
        if self._reader is None or self._reader.done():
            self._reader = asyncio.get_running_loop().create_task(self._read_for_ever())
        name, event = channel(machine_id), asyncio.Event()
        self._waiting[name].add(event)
        try:
            yield event
        finally:
            self._waiting[name].discard(event)
            if not self._waiting[name]:
                del self._waiting[name]

    async def heard(self, event: asyncio.Event, *, seconds: float) -> bool:
        """Whether the event came within ``seconds``, which are cut to POLL_SECONDS while Redis is away. Clears it."""
        limit = seconds if self.connected else min(seconds, POLL_SECONDS)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit):
                await event.wait()
        came = event.is_set()
        event.clear()
        return came

    def _wake(self, name: str) -> None:
        for event in self._waiting.get(name, ()):
            event.set()

    def _wake_all(self) -> None:
        for name in list(self._waiting):
            self._wake(name)

    async def _read_for_ever(self) -> None:
        while True:
            try:
                client = redis.asyncio.Redis.from_url(settings.REDIS_URL, socket_connect_timeout=2)
                async with client, client.pubsub() as subscription:
                    await subscription.psubscribe(f"{PREFIX}*")
                    await self._read(subscription)
            except (RedisError, OSError) as error:
                log.warning("nudges_not_heard", error=str(error))
            finally:
                self.connected = False
                self._wake_all()
            await asyncio.sleep(1)

    async def _read(self, subscription: PubSub) -> None:
        quiet = 0.0
        while True:
            message = await subscription.get_message(ignore_subscribe_messages=False, timeout=1)
            if message is None:
                quiet += 1
                if quiet >= _ALIVE_SECONDS:
                    await subscription.ping()
                    quiet = 0
                continue
            quiet = 0
            if message["type"] == "psubscribe":
                self.connected = True
                self._wake_all()
            elif message["type"] == "pmessage":
                self._wake(message["channel"].decode())


_listeners: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Listener] = weakref.WeakKeyDictionary()


def listener() -> Listener:
    """The running event loop's listener."""
    loop = asyncio.get_running_loop()
    if loop not in _listeners:
        _listeners[loop] = Listener()
    return _listeners[loop]
