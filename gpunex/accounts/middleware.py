"""Per request: which language is spoken, and which organisation the person acts for."""

from collections.abc import Callable

from allauth.account.adapter import get_adapter
from django.conf import settings
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils import translation
from django.utils.functional import SimpleLazyObject
from django.utils.http import urlencode
from django.utils.translation import gettext as _

from gpunex.accounts.organisations import acting_for
from gpunex.accounts.second_factor import has_second_factor, used_second_factor


class LanguageMiddleware:
    """The account's language if signed in, else the cookie's, else the browser's, else English."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        language = (
            request.user.language if request.user.is_authenticated else translation.get_language_from_request(request)
        )
        # Machines speak English only, whatever their HTTP client claims to prefer.
        if request.path.startswith("/api/agent/"):
            language = "en"
        if language not in dict(settings.LANGUAGES):
            language = settings.LANGUAGE_CODE
        with translation.override(language):
            request.LANGUAGE_CODE = language
            response = self.get_response(request)
        response.headers.setdefault("Content-Language", language)
        return response


class OrganisationMiddleware:
    """``request.organisation``: the organisation the person acts for, or None; read on first use."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        def find() -> object:
            if not request.user.is_authenticated:
                return None
            return acting_for(request.user, request.session.get("organisation"))

        request.organisation = SimpleLazyObject(find)  # type: ignore[attr-defined]
        return self.get_response(request)


class AdminDoorMiddleware:
    """The administration has no door of its own: staff sign in like everybody, and outside embedded mode with a second factor.

    For anyone who is not staff the administration is not there.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        return self.get_response(request)

    def process_view(self, request: HttpRequest, *_view: object) -> HttpResponse | None:
        match = request.resolver_match
        if match is None or "admin" not in match.namespaces:
            return None
        if match.url_name == "logout":
            return None
        if not request.user.is_authenticated:
            back = (
                request.GET.get("next", reverse("admin:index"))
                if match.url_name == "login"
                else request.get_full_path()
            )
            return redirect(f"{reverse(settings.LOGIN_URL)}?{urlencode({'next': back})}")
        if not request.user.is_staff:
            raise Http404
        if match.url_name == "login":
            return redirect("admin:index")
        if settings.EMBEDDED:
            return None
        if not has_second_factor(request.user):
            messages.warning(
                request, _("Administration needs a second factor. Set up an authenticator app or a passkey first.")
            )
            return redirect("mfa_index")
        if not used_second_factor(request):
            return redirect(f"{_way_to_confirm(request)}?{urlencode({'next': request.get_full_path()})}")
        return None


def _way_to_confirm(request: HttpRequest) -> str:
    """The page that asks for a second factor, of the kind that the person has."""
    methods = get_adapter().get_reauthentication_methods(request.user)
    return next(method["url"] for method in methods if method["id"].startswith("mfa_reauthenticate"))
