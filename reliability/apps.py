from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class ReliabilityConfig(AppConfig):
    name = "reliability"
    verbose_name = _("Reliability")
