#!/usr/bin/env python
"""Django's command line. In embedded mode it fills in the addresses of the cluster before the settings are read."""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent
# These two bring their own services; every other command is embedded only when GPUNEX_EMBEDDED=1 says so.
CLUSTER_OF_COMMAND = {"demo": "demo", "test": "test"}


def main() -> None:
    command = sys.argv[1] if len(sys.argv) > 1 else ""
    if command in CLUSTER_OF_COMMAND:
        os.environ["GPUNEX_EMBEDDED"] = "1"
        os.environ.setdefault("GPUNEX_CLUSTER", CLUSTER_OF_COMMAND[command])
    if os.environ.get("GPUNEX_EMBEDDED") == "1":
        fill_in_embedded_environment(starts=command == "demo", reset=command == "demo" and "--reset" in sys.argv)
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gpunex.settings")

    from django.conf import settings
    from django.core.exceptions import ImproperlyConfigured
    from django.core.management import execute_from_command_line

    try:
        settings.INSTALLED_APPS  # noqa: B018  reads the settings
    except ImproperlyConfigured as error:
        sys.exit(str(error))
    execute_from_command_line(sys.argv)


def fill_in_embedded_environment(*, starts: bool, reset: bool) -> None:
    """What changes the settings comes here, before they are read: a reset makes new keys, a start picks free ports."""
    from gpunex.embedded.cluster import Cluster
    from gpunex.embedded.processes import EmbeddedError

    try:
        cluster = Cluster(os.environ.get("GPUNEX_CLUSTER", "demo"), ROOT)
        if reset:
            cluster.reset()
            sys.argv.remove("--reset")
        cluster.prepare()
        if starts:
            cluster.choose_ports()
        known = cluster.environment()
    except EmbeddedError as error:
        sys.exit(str(error))
    for name, value in known.items():
        os.environ.setdefault(name, value)


if __name__ == "__main__":
    main()
