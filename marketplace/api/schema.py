"""The API as an OpenAPI document, made from the endpoints."""

from typing import Any

from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.views import SpectacularJSONAPIView

_ROOT = "/api/v1/"


class Generator(SchemaGenerator):
    """Only this API's paths, all behind a signed-in session."""

    def get_schema(self, *args: Any, **kwargs: Any) -> Any:
        document = super().get_schema(*args, **kwargs)
        document["paths"] = {
            path: item
            for path, item in document["paths"].items()
            if path.startswith(_ROOT) and path != f"{_ROOT}openapi.json"
        }
        return document


openapi = SpectacularJSONAPIView.as_view(
    generator_class=Generator,
    custom_settings={
        "TITLE": "GPUnex API",
        "VERSION": "1",
        "DESCRIPTION": "Balance, quotes, rentals, earnings and statements. Amounts are exact decimal texts of USDC.",
    },
)
