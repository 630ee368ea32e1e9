"""ASGI entry point: ``uvicorn gpunex.asgi:application``."""

import os

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gpunex.settings")
application = get_asgi_application()

from gpunex.chain.identity import verify_at_start  # noqa: E402  (settings and logs are set up by then)

verify_at_start()
