"""The agent API's ordinary endpoints. Each turns a request into one call of a rule and back; repeating any is harmless."""

import ipaddress
from typing import Any
from uuid import UUID

from django.http import Http404
from django.utils import timezone
from drf_spectacular.utils import OpenApiTypes, extend_schema
from rest_framework import exceptions, serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from gpunex.kit.refusals import Refusal
from gpunex.kit.time import iso_z
from gpunex.policy.models import Policy
from marketplace import lifecycle, listings
from providers import inventory as inventories
from providers import keys, machines, workloads
from providers.api import fields
from providers.api.answers import bearer, refusal_body, stamped, status_of
from providers.models import Machine, Workload
from providers.workloads import Report, UnknownWorkload
from reliability import anomalies, benchmarks, connections, floors, health, telemetry

TELEMETRY_SECONDS = 30
_ANSWER = {200: OpenApiTypes.OBJECT}


class AgentEndpoint(APIView):
    """Authenticates the machine by its secret; what goes wrong is answered as the contract says."""

    machine: Machine

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        self.at = timezone.now()
        self.authenticate_machine(request)

    def authenticate_machine(self, request: Request) -> None:
        self.machine = machines.authenticate(text=bearer(request), at=self.at)

    def read(self, shape: type[serializers.Serializer], request: Request) -> dict[str, Any]:
        """The validated body. Raises ValidationError, ParseError."""
        try:
            fields_of_body = shape(data=request.data)
        except RecursionError:  # brackets within brackets: the parser of JSON gives up on thousands
            raise exceptions.ParseError("Nested too deeply.") from None
        fields_of_body.is_valid(raise_exception=True)
        return fields_of_body.validated_data

    def handle_exception(self, exc: Exception) -> Response:
        if isinstance(exc, Refusal):
            return Response(refusal_body(exc), status=status_of(exc))
        if isinstance(exc, exceptions.ValidationError):
            body = {
                "code": "invalid",
                "detail": "The request's body is not as the contract says.",
                "errors": exc.detail,
            }
            return Response(body, status=422)
        if isinstance(exc, exceptions.ParseError | exceptions.UnsupportedMediaType):
            return Response({"code": "invalid", "detail": str(exc.detail), "errors": {}}, status=422)
        if isinstance(exc, exceptions.APIException):
            return Response({"code": exc.get_codes(), "detail": str(exc.detail)}, status=exc.status_code)
        if isinstance(exc, Http404):
            return Response({"code": "not_found", "detail": "There is no such thing here."}, status=404)
        return super().handle_exception(exc)

    def finalize_response(self, request: Request, response: Response, *args: Any, **kwargs: Any) -> Response:
        if isinstance(response.data, dict):
            response.data = stamped(response.data)
        return super().finalize_response(request, response, *args, **kwargs)

    def workload(self, workload_id: UUID) -> Workload:
        """The machine's own workload. Raises UnknownWorkload."""
        found = Workload.objects.filter(machine=self.machine, public_id=workload_id).first()
        if found is None:
            raise UnknownWorkload
        return found

    def look_at(self, taken: inventories.Taken) -> None:
        """What an inventory may show beyond the cards themselves: software that is too old, and cards that are elsewhere."""
        floors.judge_software(machine=self.machine, at=self.at)
        if taken.rejected:
            anomalies.look_at_rejected(machine=self.machine, uuids=[card.uuid for card in taken.rejected], at=self.at)

    def offers_changed(self) -> None:
        """What this machine offers may be another now: renters see it at once, not with the next sweep."""
        listings.refresh(machines=[self.machine], at=self.at)


class Enrol(AgentEndpoint):
    """POST enrol: a host presents its provider's key and gets a secret of its own. 201 a new machine, 200 the one it was."""

    def authenticate_machine(self, request: Request) -> None:
        """The key takes the secret's place: verified with the enrolment."""

    @extend_schema(request=fields.EnrolFields, responses={201: OpenApiTypes.OBJECT, **_ANSWER})
    def post(self, request: Request) -> Response:
        try:
            body = self.read(fields.EnrolFields, request)
        except exceptions.APIException:
            # Whoever has no key is told that, and not what a body looks like.
            keys.refuse_unusable(text=bearer(request), at=self.at)
            raise
        enrolment = machines.enrol(
            key_text=bearer(request),
            fingerprint=body["fingerprint"],
            hostname=body["hostname"],
            agent_version=body["agent_version"],
            boot_id=body["boot_id"],
            simulated=body["simulated"],
            inventory=body["inventory"],
            address=_address(request),
            at=self.at,
        )
        self.machine = enrolment.machine
        self.look_at(enrolment.taken)
        self.offers_changed()
        answer = {
            "machine_id": str(enrolment.machine.public_id),
            "name": enrolment.machine.name,
            "secret": enrolment.secret,
            "heartbeat_s": Policy.load().heartbeat_seconds,
            "telemetry_s": TELEMETRY_SECONDS,
            "rejected": _rejected(enrolment.taken),
        }
        return Response(answer, status=201 if enrolment.created else 200)


class Inventory(AgentEndpoint):
    """POST inventory: all cards of the host, on change and every five minutes. A refused card does not stop the others."""

    @extend_schema(request=fields.InventoryFields, responses=_ANSWER)
    def post(self, request: Request) -> Response:
        body = self.read(fields.InventoryFields, request)
        taken = inventories.take(machine=self.machine, inventory=body, at=self.at)
        health.record_software(machine=self.machine, changes=taken.software, at=self.at)
        self.look_at(taken)
        self.offers_changed()
        self.machine.refresh_from_db(fields=["revision"])
        return Response({"revision": self.machine.revision, "rejected": _rejected(taken)})


class Heartbeat(AgentEndpoint):
    """POST heartbeat: proof of life for the machine, and for the jobs that it lists as running."""

    @extend_schema(request=fields.HeartbeatFields, responses=_ANSWER)
    def post(self, request: Request) -> Response:
        body = self.read(fields.HeartbeatFields, request)
        policy = Policy.load()
        changed = connections.beat(
            machine=self.machine,
            boot_id=body["boot_id"],
            agent_version=body["agent_version"],
            nvml=body["nvml"],
            clock_offset_ms=offset_ms(body["sent_at"], self.at),
            journal=_journal(body["gap"]),
            policy=policy,
            at=self.at,
        )
        running = {
            listed["id"]: (listed["attempt"], listed["container_started_at"])
            for listed in body["workloads"]
            if listed["state"] == Workload.Observed.RUNNING
        }
        if running:
            workloads.prove(machine=self.machine, running=running, at=self.at)
        if changed:
            self.offers_changed()
        drain = self.machine.draining or self.machine.paused_at is not None
        return Response({"revision": self.machine.revision, "drain": drain, "interval_s": policy.heartbeat_seconds})


class WorkloadReport(AgentEndpoint):
    """POST workloads/<id>/report: what a workload is doing. The answer says what is wanted of it now."""

    @extend_schema(request=fields.ReportFields, responses=_ANSWER)
    def post(self, request: Request, workload_id: UUID) -> Response:
        body = self.read(fields.ReportFields, request)
        workload = workloads.report(machine=self.machine, workload_id=workload_id, report=Report(**body), at=self.at)
        # In transactions of their own: a repeat of the report makes up for one that fails.
        if workload.kind == Workload.Kind.JOB:
            lifecycle.heard(workload=workload, at=self.at)
        else:
            benchmarks.heard(workload=workload, at=self.at)
        if workload.observed == Workload.Observed.FINISHED:
            self.offers_changed()
        workload.refresh_from_db()
        self.machine.refresh_from_db(fields=["revision"])
        return Response(
            {"revision": self.machine.revision, "stop_at": iso_z(workload.stop_at), "wanted": workload.wanted}
        )


class WorkloadLogs(AgentEndpoint):
    """POST workloads/<id>/logs: the next piece of output. 409 ``offset`` says from where on it is wanted."""

    @extend_schema(request=fields.LogFields, responses=_ANSWER)
    def post(self, request: Request, workload_id: UUID) -> Response:
        body = self.read(fields.LogFields, request)
        next_offset = workloads.append_log(
            workload=self.workload(workload_id),
            attempt=body["attempt"],
            offset=body["offset"],
            text=body["text"],
            at=self.at,
        )
        return Response({"next_offset": next_offset})


class WorkloadResult(AgentEndpoint):
    """POST workloads/<id>/result: what a benchmark measured. Says of each card whether it was believed."""

    @extend_schema(request=fields.ResultFields, responses=_ANSWER)
    def post(self, request: Request, workload_id: UUID) -> Response:
        body = self.read(fields.ResultFields, request)
        runs = benchmarks.accept_result(workload=self.workload(workload_id), result=body, at=self.at)
        self.offers_changed()
        return Response(
            {"gpus": [{"uuid": run.gpu.uuid, "state": run.state, "reason": run.code or None} for run in runs]}
        )


class Telemetry(AgentEndpoint):
    """POST telemetry: up to 500 samples. A sample sent again is kept once."""

    @extend_schema(request=fields.TelemetryFields, responses=_ANSWER)
    def post(self, request: Request) -> Response:
        body = self.read(fields.TelemetryFields, request)
        sent_at = body["sent_at"]
        samples = [
            {**sample, "at": telemetry.corrected(sample["at"], sent_at=sent_at, received_at=self.at)}
            for sample in body["samples"]
        ]
        machine = self.machine
        post = telemetry.Post(machine.public_id, machine.secret_hash, samples, self.at)
        return Response({"kept": telemetry.keep([post])[0] or 0})


class Events(AgentEndpoint):
    """POST events: what happened to cards and host, in order. The answer is the highest sequence that is kept."""

    @extend_schema(request=fields.EventsFields, responses=_ANSWER)
    def post(self, request: Request) -> Response:
        body = self.read(fields.EventsFields, request)
        acknowledged, changed = health.record_events(
            machine=self.machine, events=body["events"], sent_at=body["sent_at"], at=self.at
        )
        if changed:
            self.offers_changed()
        return Response({"acknowledged": acknowledged})


class Uninstall(AgentEndpoint):
    """POST uninstall: the host retires its machine. Jobs that still run end now."""

    @extend_schema(request=None, responses=_ANSWER)
    def post(self, request: Request) -> Response:
        for workload in machines.retire(machine=self.machine, at=self.at):
            if workload.kind == Workload.Kind.JOB:
                lifecycle.heard(workload=workload, at=self.at)
            else:
                benchmarks.heard(workload=workload, at=self.at)
        self.offers_changed()
        return Response({})


def _rejected(taken: inventories.Taken) -> list[dict[str, str]]:
    return [{"uuid": card.uuid, "code": card.refusal.code, "detail": str(card.refusal)} for card in taken.rejected]


def _journal(gap: dict[str, Any] | None) -> connections.Journal | None:
    if gap is None:
        return None
    return connections.Journal(since=gap["from"], until=gap["to"], boot_id=gap["boot_id"], ran=gap["ran"])


def offset_ms(sent_at: Any, at: Any) -> int | None:
    """How far the host's clock is ahead; bounded, since a clock may be anywhere."""
    if sent_at is None:
        return None
    return max(-(2**31), min(2**31 - 1, round((sent_at - at).total_seconds() * 1000)))


def _address(request: Request) -> str | None:
    """The host's address as the web server tells it; None where it tells none (a unix socket)."""
    try:
        return str(ipaddress.ip_address(request.META.get("REMOTE_ADDR", "")))
    except ValueError:
        return None
