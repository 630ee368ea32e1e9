from django.apps import AppConfig


class OpsConfig(AppConfig):
    """What the people who run the platform use: commands over every app's sweeps."""

    name = "gpunex.ops"
    label = "ops"
