"""Addresses of the agent API, version 1."""

from django.urls import URLPattern, path, re_path

from providers.api import endpoints, schema, waiting

urlpatterns: list[URLPattern] = [
    path("enrol", endpoints.Enrol.as_view(), name="agent_enrol"),
    path("inventory", endpoints.Inventory.as_view(), name="agent_inventory"),
    path("heartbeat", endpoints.Heartbeat.as_view(), name="agent_heartbeat"),
    path("assignments", waiting.assignments, name="agent_assignments"),
    path("workloads/<uuid:workload_id>/report", endpoints.WorkloadReport.as_view(), name="agent_report"),
    path("workloads/<uuid:workload_id>/logs", endpoints.WorkloadLogs.as_view(), name="agent_logs"),
    path("workloads/<uuid:workload_id>/result", endpoints.WorkloadResult.as_view(), name="agent_result"),
    path("telemetry", endpoints.Telemetry.as_view(), name="agent_telemetry"),
    path("events", endpoints.Events.as_view(), name="agent_events"),
    path("speed", waiting.speed, name="agent_speed"),
    path("uninstall", endpoints.Uninstall.as_view(), name="agent_uninstall"),
    path("openapi.json", schema.openapi, name="agent_openapi"),
    re_path(r"^(?P<path>.*)$", waiting.unknown),
]
