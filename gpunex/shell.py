"""What every page's frame shows: the organisation, its balance, the provider's gauges. A page: it may read any rule."""

from collections.abc import Callable
from functools import cache
from typing import Any

from django.conf import settings
from django.http import HttpRequest
from django.utils import timezone
from django.utils.translation import gettext

from billing import metering
from gpunex import desk
from gpunex.accounts.models import Organisation


def context(request: HttpRequest) -> dict[str, Any]:
    """Template context of the shells. What costs a query is a function, which a template calls when it first uses it: a page
    without a frame pays nothing, and only the provider's front reads the gauges. A view may put its own value in its place."""
    user = getattr(request, "user", None)
    signed_in = user is not None and user.is_authenticated
    shared: dict[str, Any] = {
        "embedded": settings.EMBEDDED,
        "public_url": settings.PUBLIC_URL,
        "organisation": getattr(request, "organisation", None),
        "theme": user.theme if signed_in else "",
        "balance_micro": None,
        "is_provider": False,
    }
    if not signed_in:
        return shared
    return shared | {
        "organisations": _once(lambda: list(Organisation.objects.filter(members=user).order_by("memberships__pk"))),
        "balance_micro": _once(lambda: _available(request)),
        "is_provider": _once(lambda: desk.of(request) is not None),
        "gauges": _once(lambda: desk.gauges(request.desk) if desk.of(request) else []),
        "tabs_count": _once(lambda: desk.tabs_count(request.desk) if desk.of(request) else {}),
    }


def environment(request: HttpRequest) -> list[str] | None:
    """The admin's label of where one is: nothing in production."""
    return [gettext("Demonstration"), "warning"] if settings.EMBEDDED else None


def _once(read: Callable[[], Any]) -> Callable[[], Any]:
    return cache(read)


def _available(request: HttpRequest) -> int | None:
    """What the organisation can spend now, in micro-USDC; None for who acts for none."""
    if not request.organisation:
        return None
    return metering.position(request.organisation, at=timezone.now()).available_micro
