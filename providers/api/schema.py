"""The contract as an OpenAPI document, made from the endpoints."""

from typing import Any

from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.views import SpectacularJSONAPIView

_ROOT = "/api/agent/v1/"
_SECURITY: list[dict[str, list[str]]] = [{"machineSecret": []}]
_ERRORS = {"401": {"description": "key_unknown, key_used, key_expired, key_revoked, revoked or secret_unknown"}}


class Generator(SchemaGenerator):
    """Adds what plain async views do not tell of themselves."""

    def get_schema(self, *args: Any, **kwargs: Any) -> Any:
        document = super().get_schema(*args, **kwargs)
        document["paths"] = {
            path: item
            for path, item in document["paths"].items()
            if path.startswith(_ROOT) and path != f"{_ROOT}openapi.json"
        } | _PLAIN
        for item in document["paths"].values():
            for operation in item.values():
                operation.setdefault("responses", {}).update(_ERRORS)
                operation["security"] = _SECURITY
        document.setdefault("components", {})["securitySchemes"] = {
            "machineSecret": {
                "type": "http",
                "scheme": "bearer",
                "description": "the machine's secret; for enrol, the provider's key",
            }
        }
        return document


def _number(name: str, description: str) -> dict[str, Any]:
    return {"name": name, "in": "query", "schema": {"type": "integer"}, "description": description}


_PLAIN: dict[str, Any] = {
    f"{_ROOT}assignments": {
        "get": {
            "operationId": "assignments",
            "description": "What the machine should run. Waits until its revision is past `after`, at most `wait` seconds.",
            "parameters": [_number("after", "the revision that is known"), _number("wait", "seconds, at most 25")],
            "responses": {"200": {"description": "revision and all workloads that the machine should know of"}},
        }
    },
    f"{_ROOT}speed": {
        "get": {
            "operationId": "speed_download",
            "description": "Incompressible bytes.",
            "parameters": [_number("bytes", "how many, at most 25 MiB")],
            "responses": {"200": {"description": "the bytes", "content": {"application/octet-stream": {}}}},
        },
        "post": {
            "operationId": "speed_upload",
            "description": "Counts the bytes of the body.",
            "requestBody": {"content": {"application/octet-stream": {}}},
            "responses": {"200": {"description": "received_bytes"}},
        },
    },
}

openapi = SpectacularJSONAPIView.as_view(
    generator_class=Generator,
    custom_settings={"TITLE": "GPUnex agent API", "VERSION": "1", "DESCRIPTION": "Outbound requests of GPU hosts."},
)
