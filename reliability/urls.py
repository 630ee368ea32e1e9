from django.urls import URLPattern, URLResolver, path

from reliability import api
from reliability.views import cases

app_name = "reliability"
urlpatterns: list[URLPattern | URLResolver] = [
    path("api/v1/machines/<uuid:public_id>/reliability/explain", api.Explain.as_view(), name="explain"),
    path("api/v1/machines/<uuid:public_id>/reliability/events", api.Events.as_view(), name="events"),
    path("support", cases.case_list, name="cases"),
    path("support/new", cases.new_case, name="new_case"),
    path("support/<uuid:public_id>", cases.case, name="case"),
    path("support/<uuid:public_id>/messages", cases.write, name="write_case"),
    path("support/<uuid:public_id>/close", cases.close, name="close_case"),
]
