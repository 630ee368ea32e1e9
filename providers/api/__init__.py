"""The REST contract of agents, version 1: outbound requests of hosts to ``/api/agent/v1/``.

JSON both ways, times as ISO 8601 UTC with Z, unknown values null. Every answer has ``server_time``; an error is a status
with ``{"code", "detail", "server_time"}`` and, for 422, ``errors``. ``endpoints`` are ordinary views, ``waiting`` the ones
that wait or carry bulk, ``fields`` what is read from requests, ``answers`` what errors look like.
"""
