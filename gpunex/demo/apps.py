from django.apps import AppConfig


class DemoConfig(AppConfig):
    name = "gpunex.demo"
    label = "demo"
