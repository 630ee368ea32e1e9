"""Per request: which language is spoken, and which organisation the person acts for."""

from collections.abc import Callable

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.utils import translation
from django.utils.functional import SimpleLazyObject

from gpunex.accounts.organisations import acting_for


class LanguageMiddleware:
    """The account's language if signed in, else the cookie's, else the browser's, else English."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        language = request.user.language if request.user.is_authenticated else translation.get_language_from_request(request)
        # Machines speak English only, whatever their HTTP client claims to prefer.
        if request.path.startswith("/api/agent/"):
            language = "en"
        if language not in dict(settings.LANGUAGES):
            language = settings.LANGUAGE_CODE
        with translation.override(language):
            request.LANGUAGE_CODE = language  # type: ignore[attr-defined]
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
