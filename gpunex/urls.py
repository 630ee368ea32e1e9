"""Every address of the site. Each app keeps its own list; this one says where they stand."""

from django.conf import settings
from django.contrib import admin
from django.urls import include, path

from gpunex import dev, health, metrics
from marketplace.views.front import front
from providers.views.guide import guide
from providers.views.keys import agent_install

urlpatterns = [
    path("", front, name="front"),
    path("admin/", admin.site.urls),
    path("account/", include("allauth.urls")),
    path("me/", include("gpunex.accounts.urls")),
    path("health/live", health.live, name="health_live"),
    path("health/ready", health.ready, name="health_ready"),
    path("metrics", metrics.metrics, name="metrics"),
    path("agent", agent_install, name="agent_install"),
    path("guide", guide, name="guide"),
    path("api/v1/", include("marketplace.api.urls")),
    path("", include("providers.urls")),
    path("", include("reliability.urls")),
    path("", include("billing.urls")),
    path("", include("payouts.urls")),
    path("", include("marketplace.urls")),
]
if settings.EMBEDDED:
    urlpatterns += [
        path("dev/components", dev.components, name="dev_components"),
        path("dev/mail", dev.mailbox, name="dev_mailbox"),
        path("dev/mail/<slug:name>", dev.mail, name="dev_mail"),
    ]
