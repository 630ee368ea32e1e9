"""Addresses of the API, version 1."""

from django.urls import URLPattern, path

from marketplace.api import endpoints, schema

urlpatterns: list[URLPattern] = [
    path("balance", endpoints.Balance.as_view(), name="api_balance"),
    path("quotes", endpoints.Quotes.as_view(), name="api_quotes"),
    path("rentals", endpoints.Rentals.as_view(), name="api_rentals"),
    path("rentals/<uuid:public_id>", endpoints.OneRental.as_view(), name="api_rental"),
    path("earnings", endpoints.Earnings.as_view(), name="api_earnings"),
    path("statements", endpoints.Statements.as_view(), name="api_statements"),
    path("openapi.json", schema.openapi, name="api_openapi"),
]
