"""Pages of the embedded mode only: the mailbox of the demonstration. Elsewhere these addresses do not exist."""

import email
import email.policy
from pathlib import Path
from typing import Any

from django.conf import settings
from django.contrib.auth.decorators import login_not_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.clickjacking import xframe_options_sameorigin
from django.views.decorators.http import require_safe

SHOWN = 50


def _read(path: Path) -> dict[str, Any]:
    message = email.message_from_bytes(path.read_bytes(), policy=email.policy.default)
    text, html = message.get_body(("plain",)), message.get_body(("html",))
    return {
        "name": path.stem,
        "to": message["To"],
        "subject": message["Subject"],
        "date": message["Date"],
        "text": text.get_content() if text else "",
        "html": html.get_content() if html else "",
    }


def _folder() -> Path:
    if not settings.EMBEDDED:
        raise Http404
    return Path(settings.MAIL_DIR)


@login_not_required
@require_safe
def mailbox(request: HttpRequest) -> HttpResponse:
    """GET /dev/mail: the mails that would have gone out, the newest first; ``?to=`` filters by address."""
    to = request.GET.get("to", "").strip().lower()
    mails = []
    for path in sorted(_folder().glob("*.eml"), reverse=True):
        read = _read(path)
        if not to or to == str(read["to"]).lower():
            mails.append(read)
        if len(mails) == SHOWN:
            break
    return render(request, "dev/mailbox.html", {"mails": mails, "to": to})


@login_not_required
@require_safe
@xframe_options_sameorigin
def mail(request: HttpRequest, name: str) -> HttpResponse:
    """GET /dev/mail/<name>: one mail."""
    path = _folder() / f"{name}.eml"
    if not path.is_file():
        raise Http404
    return render(request, "dev/mail.html", {"mail": _read(path)})
