from django.urls import URLPattern, URLResolver, include, path

from providers.views import applications, keys

app_name = "providers"
urlpatterns: list[URLPattern | URLResolver] = [
    path("api/agent/v1/", include("providers.api.urls")),
    path("roles", applications.roles, name="roles"),
    path("roles/apply", applications.apply, name="apply"),
    path("roles/applications/<uuid:public_id>", applications.application, name="application"),
    path("roles/applications/<uuid:public_id>/review", applications.review, name="application_review"),
    path("roles/applications/<uuid:public_id>/withdraw", applications.withdraw, name="application_withdraw"),
    path("provider/keys", keys.key_list, name="keys"),
    path("provider/keys/<int:pk>/rotate", keys.rotate, name="key_rotate"),
    path("provider/keys/<int:pk>/revoke", keys.revoke, name="key_revoke"),
    path("provider/install", keys.install, name="install"),
]
