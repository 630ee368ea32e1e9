"""The renters' and providers' API, version 1: ``/api/v1/``. So far the money of it, read only; the rest of renting follows.

A signed-in session is the key for now, and acts for the organisation that the session acts for. JSON; times as ISO 8601 UTC with Z; amounts
are exact decimal texts of USDC ("1.300241"), never numbers, since many JSON readers make floats of those. A list answers ``items``, ``page``,
``pages``, ``total`` and ``next``. An error is a status with ``{"code", "message"}``, the message in the language of the request, and for 422
``errors`` by parameter. ``base`` is what all endpoints share, ``shapes`` what goes in and out, ``schema`` the OpenAPI document.
"""
