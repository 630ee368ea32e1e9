"""What every endpoint shares: who asks, how often, how lists are paged, and what an error looks like."""

from collections.abc import Callable
from typing import Any

from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.http import Http404
from django.utils import timezone
from django.utils.cache import patch_cache_control
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from rest_framework import exceptions, serializers
from rest_framework.authentication import SessionAuthentication
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.throttling import UserRateThrottle
from rest_framework.views import APIView

from gpunex.accounts.models import Organisation
from gpunex.kit.refusals import Refusal
from marketplace.api import shapes
from providers.models import Provider

STATUS = {"not_enough_money": 409, "not_offered": 409, "no_organisation": 403, "not_a_provider": 403}


class NoOrganisation(Refusal):
    code = "no_organisation"
    message = gettext_lazy("You belong to no organisation. Ask an owner of yours to add you.")


class NotAProvider(Refusal):
    code = "not_a_provider"
    message = gettext_lazy("Only a provider has earnings. Apply on the Roles page.")


class Throttle(UserRateThrottle):
    """By person, so that one script does not slow down its colleagues'."""

    scope = "api"


class Endpoint(APIView):
    """A reading endpoint of one organisation."""

    authentication_classes = (SessionAuthentication,)
    throttle_classes = (Throttle,)

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        if not request.user or not request.user.is_authenticated:
            raise exceptions.NotAuthenticated
        super().initial(request, *args, **kwargs)
        self.at = timezone.now()
        organisation = request._request.organisation
        if not organisation:
            raise NoOrganisation
        self.organisation: Organisation = organisation

    def provider(self) -> Provider:
        """Raises NotAProvider."""
        found = Provider.objects.filter(organisation=self.organisation.pk).first()
        if found is None:
            raise NotAProvider
        return found

    def query(self, shape: type[serializers.Serializer], request: Request) -> dict[str, Any]:
        """The query, read and checked. A parameter that does not exist is refused: a slip would be believed. Raises ValidationError."""
        known = shape(data=request.query_params.dict())
        unknown = sorted(set(request.query_params) - set(known.fields))
        if unknown:
            raise serializers.ValidationError({name: [_("There is no such parameter.")] for name in unknown})
        known.is_valid(raise_exception=True)
        return known.validated_data

    def page(self, rows: QuerySet[Any], wanted: dict[str, Any], answer: Callable[[Any], dict[str, Any]]) -> Response:
        """One page of ``rows``; a page past the end is empty."""
        number = wanted.get("page") or 1
        found = Paginator(rows, wanted.get("per_page") or shapes.PER_PAGE)
        items = found.page(number).object_list if number <= found.num_pages else []
        following = None
        if number < found.num_pages:
            query = self.request.query_params.copy()
            query["page"] = str(number + 1)
            following = self.request.build_absolute_uri(f"?{query.urlencode()}")
        return Response(
            {
                "items": [answer(row) for row in items],
                "page": number,
                "pages": found.num_pages,
                "total": found.count,
                "next": following,
            }
        )

    def handle_exception(self, exc: Exception) -> Response:
        if isinstance(exc, Refusal):
            return _error(exc.code, str(exc), status=STATUS.get(exc.code, 422))
        if isinstance(exc, exceptions.NotAuthenticated | exceptions.AuthenticationFailed):
            return _error("not_signed_in", _("Sign in first."), status=401)
        if isinstance(exc, exceptions.ValidationError):
            return _error("invalid", _("The query is not as the documentation says."), status=422, errors=exc.detail)
        if isinstance(exc, exceptions.Throttled):
            wait = max(1, round(exc.wait or 1))
            response = _error(
                "throttled",
                _("Too many requests. Ask again in %(seconds)s seconds.") % {"seconds": wait},
                status=429,
            )
            response["Retry-After"] = str(wait)
            return response
        if isinstance(exc, Http404):
            return _error("not_found", _("There is no such thing here."), status=404)
        if isinstance(exc, exceptions.APIException):
            return _error(str(exc.get_codes()), str(exc.detail), status=exc.status_code)
        return super().handle_exception(exc)

    def finalize_response(self, request: Request, response: Response, *args: Any, **kwargs: Any) -> Response:
        response = super().finalize_response(request, response, *args, **kwargs)
        patch_cache_control(response, private=True, no_store=True)
        return response


def _error(code: str, message: str, *, status: int, **more: Any) -> Response:
    return Response({"code": code, "message": message, **more}, status=status)
