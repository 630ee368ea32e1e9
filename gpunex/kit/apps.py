from django.apps import AppConfig


class KitConfig(AppConfig):
    name = "gpunex.kit"
    label = "kit"
