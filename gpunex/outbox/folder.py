"""Mail of the embedded mode: each message is a file in ``MAIL_DIR``, read on the page ``/dev/mail``."""

import os
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

from django.conf import settings
from django.core.mail import EmailMessage
from django.core.mail.backends.base import BaseEmailBackend


class EmailBackend(BaseEmailBackend):
    def send_messages(self, email_messages: Sequence[EmailMessage]) -> int:
        folder = Path(settings.MAIL_DIR)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for message in email_messages:
            # Named by time, so that the newest sorts last; written whole, then renamed, so that no reader sees half of one.
            name = f"{time.time_ns()}-{uuid.uuid4().hex[:8]}.eml"
            partial = folder / f".{name}"
            partial.write_bytes(message.message().as_bytes())
            os.replace(partial, folder / name)
        return len(email_messages)
