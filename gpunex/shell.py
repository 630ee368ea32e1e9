"""What every page's frame shows: the organisation, its balance, the provider's gauges. A page: it may read any rule."""

from typing import Any

from django.conf import settings
from django.http import HttpRequest


def context(request: HttpRequest) -> dict[str, Any]:
    """Template context of the shells. Lazy where it costs a query: a page without a frame pays nothing."""
    return {
        "embedded": settings.EMBEDDED,
        "organisation": getattr(request, "organisation", None),
        "public_url": settings.PUBLIC_URL,
    }


def environment(request: HttpRequest) -> list[str] | None:
    """The admin's label of where one is: nothing in production."""
    return ["Demonstration", "warning"] if settings.EMBEDDED else None
