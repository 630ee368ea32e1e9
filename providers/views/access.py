"""Who may open the dashboard: members of an organisation that provides GPUs."""

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.cache import patch_vary_headers

from gpunex import desk
from gpunex.accounts.organisations import may_act

View = Callable[..., HttpResponse]


def provider_page(view: View) -> View:
    """A page of the dashboard: ``request.desk`` holds the provider and its facts. Who is no provider is shown the way to become one.

    What changes something is refused to those who only look or only pay.
    """

    @wraps(view)
    def page(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        if desk.of(request) is None:
            return redirect("providers:roles")
        if request.method not in ("GET", "HEAD", "OPTIONS") and not may_act(request.user, request.organisation):
            raise PermissionDenied
        response = view(request, *args, **kwargs)
        patch_vary_headers(response, ["HX-Request"])
        return response

    return page
