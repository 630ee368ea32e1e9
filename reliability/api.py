"""Reliability for everybody: why a machine's score is what it is, and the events to compute it again.

    GET /api/v1/machines/{id}/reliability/explain    the score, each event with its points, the days, what would raise it
    GET /api/v1/machines/{id}/reliability/events     the document of ``manage.py replay_score --events``

Open to all for machines that are offered, without signing in; a provider may ask about any of its own. Nothing in them says
whose machine it is: no owner, no names, no texts that somebody wrote.
"""

from datetime import timedelta
from typing import Any
from uuid import UUID

from django.http import Http404
from django.utils import timezone
from django.utils.cache import patch_cache_control
from django.utils.translation import gettext as _
from drf_spectacular.utils import extend_schema
from rest_framework import exceptions, serializers
from rest_framework.authentication import SessionAuthentication
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.throttling import SimpleRateThrottle
from rest_framework.views import APIView

from gpunex.kit.time import iso_z
from marketplace.models import Listing
from providers.models import Machine, Provider
from reliability import explain, export, formulas, recorded, score_words
from reliability.explain import Explanation

DAYS = timedelta(days=90)
FRESH_SECONDS = 30
_TEXTS = {"maintenance": "reason", "excuses": "reason", "jobs": "excused_reason"}


class ScorePartAnswer(serializers.Serializer):
    share = serializers.FloatField(help_text="0 to 1")
    points = serializers.FloatField(help_text="of the score's 100")
    most = serializers.FloatField(help_text="points that this part can give")
    prior = serializers.FloatField(help_text="points that the prior of a new machine keeps back")


class LossAnswer(serializers.Serializer):
    component = serializers.ChoiceField(["uptime", "completion", "consistency"])
    code = serializers.CharField()
    text = serializers.CharField()
    points = serializers.FloatField(help_text="what it costs now")
    started_at = serializers.CharField()
    ended_at = serializers.CharField(allow_null=True, help_text="null while it goes on")
    halved_at = serializers.CharField(allow_null=True)
    until = serializers.CharField(allow_null=True, help_text="from then on it costs nothing")
    gpus = serializers.ListField(child=serializers.IntegerField(), help_text="indexes; empty: all of the machine")


class StepAnswer(serializers.Serializer):
    code = serializers.CharField()
    text = serializers.CharField()
    points = serializers.FloatField()


class UptimeDayAnswer(serializers.Serializer):
    day = serializers.DateField()
    state = serializers.ChoiceField(["ok", "part", "down", "excused", "none"])
    declared_hours = serializers.FloatField()
    available_hours = serializers.FloatField()
    text = serializers.CharField()


class GpuScoreAnswer(serializers.Serializer):
    id = serializers.UUIDField()
    score = serializers.FloatField()
    margin = serializers.FloatField()
    uptime = serializers.FloatField()
    completion = serializers.FloatField()
    consistency = serializers.FloatField()


class ReliabilityAnswer(serializers.Serializer):
    machine = serializers.UUIDField()
    at = serializers.CharField()
    version = serializers.IntegerField(help_text="of the formula")
    score = serializers.FloatField()
    margin = serializers.FloatField(help_text="± this in nine of ten cases")
    new = serializers.BooleanField()
    declared_hours = serializers.FloatField()
    jobs = serializers.IntegerField()
    runs = serializers.IntegerField()
    uptime = ScorePartAnswer()
    completion = ScorePartAnswer()
    consistency = ScorePartAnswer()
    losses = LossAnswer(many=True)
    steps = StepAnswer(many=True)
    halved_by = serializers.CharField(allow_null=True, help_text="when what these events cost has halved")
    days = UptimeDayAnswer(many=True)
    gpus = GpuScoreAnswer(many=True)


class ReliabilityEventsAnswer(serializers.Serializer):
    format = serializers.CharField()
    machine = serializers.UUIDField()
    exported_at = serializers.CharField()
    schedules = serializers.ListField(child=serializers.DictField())
    connections = serializers.ListField(child=serializers.DictField())
    gaps = serializers.ListField(child=serializers.DictField())
    maintenance = serializers.ListField(child=serializers.DictField())
    outages = serializers.ListField(child=serializers.DictField())
    excuses = serializers.ListField(child=serializers.DictField())
    cards = serializers.ListField(child=serializers.DictField())
    jobs = serializers.ListField(child=serializers.DictField())
    terms = serializers.ListField(child=serializers.DictField())
    scores = serializers.ListField(child=serializers.DictField())


class ReliabilityError(serializers.Serializer):
    code = serializers.CharField()
    message = serializers.CharField()


class Throttle(SimpleRateThrottle):
    """By address: nobody has to sign in."""

    scope = "api"

    def get_cache_key(self, request: Request, view: Any) -> str:
        return f"throttle_reliability_{request._request.META.get('REMOTE_ADDR', '')}"


class _Public(APIView):
    authentication_classes = (SessionAuthentication,)  # nobody has to be
    throttle_classes = (Throttle,)

    def machine(self, request: Request, public_id: UUID) -> Machine:
        """A machine that is offered, or one's own. Raises Http404, so that nobody learns of others."""
        found = Machine.objects.filter(public_id=public_id).first()
        if found is None:
            raise Http404
        listed = Listing.objects.filter(machine=found).exclude(state=Listing.State.RETIRED).exists()
        if not listed and not self._is_own(request, found):
            raise Http404
        return found

    def _is_own(self, request: Request, machine: Machine) -> bool:
        organisation = request._request.organisation if request.user else None
        owners = Provider.objects.filter(pk=machine.provider_id)
        return bool(organisation) and owners.filter(organisation=organisation.pk).exists()

    def handle_exception(self, exc: Exception) -> Response:
        if isinstance(exc, Http404):
            return Response({"code": "not_found", "message": _("There is no such machine here.")}, status=404)
        if isinstance(exc, exceptions.Throttled):
            wait = max(1, round(exc.wait or 1))
            text = _("Too many requests. Ask again in %(seconds)s seconds.") % {"seconds": wait}
            response = Response({"code": "throttled", "message": text}, status=429)
            response["Retry-After"] = str(wait)
            return response
        return super().handle_exception(exc)

    def finalize_response(self, request: Request, response: Response, *args: Any, **kwargs: Any) -> Response:
        response = super().finalize_response(request, response, *args, **kwargs)
        patch_cache_control(response, private=True, max_age=FRESH_SECONDS)
        return response


class Explain(_Public):
    """GET /api/v1/machines/{id}/reliability/explain: the score of a machine as of now, and where each point went."""

    @extend_schema(auth=[], responses={200: ReliabilityAnswer, 404: ReliabilityError, 429: ReliabilityError})
    def get(self, request: Request, public_id: UUID) -> Response:
        at = timezone.now()
        machine = self.machine(request, public_id)
        found = recorded.read(machine, since=at - 2 * DAYS)
        return Response(_answer(machine, explain.explain(found, at=at, version=formulas.counting(at))))


class Events(_Public):
    """GET /api/v1/machines/{id}/reliability/events: what its scores of 90 days rest on, and these scores."""

    @extend_schema(auth=[], responses={200: ReliabilityEventsAnswer, 404: ReliabilityError, 429: ReliabilityError})
    def get(self, request: Request, public_id: UUID) -> Response:
        at = timezone.now()
        document = export.document(self.machine(request, public_id), at=at, since=at - DAYS)
        for name, text in _TEXTS.items():
            for row in document[name]:
                row[text] = ""
        return Response(document)


def _answer(machine: Machine, told: Explanation) -> dict[str, Any]:
    parts = told.parts
    return {
        "machine": str(machine.public_id),
        "at": iso_z(told.at),
        "version": told.version,
        "score": parts.score,
        "margin": parts.margin,
        "new": parts.new,
        "declared_hours": parts.declared_hours,
        "jobs": parts.jobs,
        "runs": parts.runs,
        **{
            name: {
                "share": getattr(parts, name),
                "points": 100 * weight * getattr(parts, name),
                "most": 100 * weight,
                "prior": told.prior[name],
            }
            for name, weight in formulas.WEIGHTS.items()
        },
        "losses": [
            {
                "component": loss.component,
                "code": loss.code,
                "text": score_words.loss_in_words(loss),
                "points": loss.points,
                "started_at": iso_z(loss.started_at),
                "ended_at": None if loss.ongoing else iso_z(loss.ended_at),
                "halved_at": iso_z(loss.halved_at),
                "until": iso_z(loss.until),
                "gpus": list(loss.cards),
            }
            for loss in told.losses
        ],
        "steps": [
            {"code": step.code, "text": score_words.step_in_words(step), "points": step.points} for step in told.steps
        ],
        "halved_by": iso_z(told.halved_by),
        "days": [
            {
                "day": day.day.isoformat(),
                "state": day.state,
                "declared_hours": day.declared_hours,
                "available_hours": day.available_hours,
                "text": score_words.day_in_words(day),
            }
            for day in told.days
        ],
        "gpus": [
            {"id": card, **{name: getattr(own, name) for name in export.PARTS}} for card, own in told.cards.items()
        ],
    }
