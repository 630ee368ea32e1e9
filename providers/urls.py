from django.urls import URLPattern, URLResolver, include, path

from billing import views as billing_views
from payouts import views as payout_views
from providers.views import applications, availability, benchmarks, dashboard, keys, machines, performance, pricing, settings

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
    path("provider/", dashboard.overview, name="overview"),
    path("provider/machines", machines.machine_list, name="machines"),
    path("provider/machines/<uuid:public_id>", machines.machine, name="machine"),
    path("provider/machines/<uuid:public_id>/hide", machines.hide, name="machine_hide"),
    path("provider/machines/<uuid:public_id>/show", machines.unhide, name="machine_unhide"),
    path("provider/machines/<uuid:public_id>/drain", machines.drain, name="machine_drain"),
    path("provider/machines/<uuid:public_id>/resume", machines.resume, name="machine_resume"),
    path("provider/machines/<uuid:public_id>/retire", machines.retire, name="machine_retire"),
    path("provider/machines/<uuid:public_id>/gpus/<uuid:gpu_id>/give", machines.give, name="gpu_give"),
    path("provider/machines/<uuid:public_id>/gpus/<uuid:gpu_id>/keep", machines.keep, name="gpu_keep"),
    path("provider/machines/<uuid:public_id>/maintenance", machines.maintenance, name="maintenance"),
    path("provider/machines/<uuid:public_id>/maintenance/<int:pk>/cancel", machines.cancel_maintenance, name="maintenance_cancel"),
    path("provider/benchmarks", benchmarks.benchmark_list, name="benchmarks"),
    path("provider/benchmarks/gpus/<uuid:public_id>", benchmarks.gpu, name="benchmark_gpu"),
    path("provider/machines/<uuid:public_id>/measure", benchmarks.measure_again, name="measure_again"),
    path("provider/pricing", pricing.prices, name="pricing"),
    path("provider/availability", availability.availability, name="availability"),
    path("provider/availability/<uuid:public_id>", availability.machine_hours, name="availability_of"),
    path("provider/earnings", billing_views.earnings, name="earnings"),
    path("provider/payouts", payout_views.payouts, name="payouts"),
    path("provider/payouts/wallet", payout_views.connect_wallet, name="connect_wallet"),
    path("provider/payouts/wallet/cancel", payout_views.cancel_wallet, name="cancel_wallet"),
    path("provider/payouts/cadence", payout_views.cadence, name="cadence"),
    path("provider/payouts/<uuid:public_id>", payout_views.payout, name="payout"),
    path("provider/performance", performance.performance, name="performance"),
    path("provider/settings", settings.settings, name="settings"),
]
