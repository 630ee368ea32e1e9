"""ASGI entry point: ``uvicorn gpunex.asgi:application``.

Most requests go through Django's handler and its middleware, part of which is synchronous and so holds a thread for as
long as a request lasts. Requests of agents that wait for minutes go around it: a thousand of them are a thousand
coroutines. So do heartbeats and telemetry, which a door before all else writes many at once.
"""

import os
from typing import Any

from django.conf import settings
from django.core.asgi import get_asgi_application
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.exception import convert_exception_to_response

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gpunex.settings")

# Plain async views that authenticate by themselves and need nothing of the middleware.
WAITING = ("/api/agent/v1/assignments", "/api/agent/v1/speed")


class WaitingHandler(ASGIHandler):
    """Django's handler without middleware, and without the thread that it otherwise keeps for each request."""

    def load_middleware(self, is_async: bool = False) -> None:
        self._view_middleware: list[Any] = []
        self._template_response_middleware: list[Any] = []
        self._exception_middleware: list[Any] = []
        self._middleware_chain = convert_exception_to_response(self._get_response_async)  # type: ignore[attr-defined]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.handle(scope, receive, send)


_handler = get_asgi_application()

from providers.api.door import Door  # noqa: E402  (it imports models: Django is set up by now)

_pages = Door(_handler)
_waiting = WaitingHandler()


async def application(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] != "http":
        await _pages(scope, receive, send)
        return
    most = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
    length = dict(scope["headers"]).get(b"content-length", b"")
    if length.isdigit() and int(length) > most:
        await send(
            {
                "type": "http.response.start",
                "status": 413,
                "headers": [(b"content-type", b"text/plain"), (b"connection", b"close")],
            }
        )
        await send({"type": "http.response.body", "body": b"The body is too long.\n"})
        return
    handler = _waiting if scope["path"] in WAITING else _pages
    await handler(scope, _no_more_than(most, receive), send)


def _no_more_than(most: int, receive: Any) -> Any:
    """Django keeps a body on disk before anything looks at who sent it: one without a length is cut off here."""
    received = 0

    async def cut_off() -> Any:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        return message if received <= most else {"type": "http.disconnect"}

    return cut_off
