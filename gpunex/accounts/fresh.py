"""A fresh sign-in: pages that change where or when money goes ask for the password or the second factor once more.

1. Fresh means: confirmed within ACCOUNT_REAUTHENTICATION_TIMEOUT seconds, by django-allauth's own pages (password, code, passkey).
   Having signed in is not enough: whoever finds an open browser has that too.
2. A page is asked for first and its form sent later, so the check is made at both. A form that came too late changes nothing; what was
   typed is kept, encrypted, in the session, and stands in the form again when the person is back.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, overload
from urllib.parse import urlsplit

from allauth.account.adapter import get_adapter
from allauth.account.internal.flows.reauthentication import did_recently_reauthenticate
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import redirect, resolve_url
from django.utils.http import url_has_allowed_host_and_scheme, urlencode
from django.utils.translation import gettext as _

from gpunex.kit import secrets

type View = Callable[..., HttpResponse]

TYPED = "typed_before"
MOST_TYPED_BYTES = 4_000
# What a form carries for us and not from the person.
NOT_TYPED = frozenset({"csrfmiddlewaretoken"})


@overload
def fresh_sign_in(view: View) -> View: ...
@overload
def fresh_sign_in(*, back: str) -> Callable[[View], View]: ...
def fresh_sign_in(view: View | None = None, *, back: str = "") -> View | Callable[[View], View]:
    """Let ``view`` run only within minutes of a confirmation; else confirm first and come back.

    Back is to the page itself; after a POST to ``back`` (the name of a page), by default to the page that sent the form.
    Stands under LoginRequiredMiddleware, above or below ``require_POST``.
    """

    def guard(view: View) -> View:
        @wraps(view)
        def guarded(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
            if did_recently_reauthenticate(request):
                return view(request, *args, **kwargs)
            return _confirm(request, back=back)

        return guarded

    return guard(view) if view is not None else guard


def is_fresh(request: HttpRequest) -> bool:
    """Whether this person confirmed within the last minutes."""
    return did_recently_reauthenticate(request)


def typed_before(request: HttpRequest) -> dict[str, str]:
    """What the person had typed into this page's form when a confirmation came between, once: the form's ``initial``."""
    kept = request.session.get(TYPED)
    if not kept or kept["page"] != request.path:
        return {}
    del request.session[TYPED]
    try:
        return QueryDict(secrets.decrypt(kept["typed"].encode())).dict()
    except ValueError:  # the keys were changed meanwhile
        return {}


def _confirm(request: HttpRequest, *, back: str) -> HttpResponse:
    methods = get_adapter().get_reauthentication_methods(request.user)
    if not methods:
        raise PermissionDenied
    page = request.get_full_path()
    if request.method not in ("GET", "HEAD"):
        page = resolve_url(back) if back else _sender(request)
        _keep_typed(request, page)
        messages.warning(request, _("Nothing was changed yet. Confirm that it is you, then send the form again."))
    target = f"{methods[0]['url']}?{urlencode({'next': page})}"
    if request.headers.get("HX-Request"):
        return HttpResponse(headers={"HX-Redirect": target})
    return redirect(target)


def _sender(request: HttpRequest) -> str:
    """The page whose form was sent, if it was one of ours; else the address it was sent to."""
    sender = request.headers.get("HX-Current-URL") or request.headers.get("Referer", "")
    if not url_has_allowed_host_and_scheme(sender, {request.get_host()}, require_https=request.is_secure()):
        return request.path
    parts = urlsplit(sender)
    return f"{parts.path}?{parts.query}" if parts.query else parts.path


def _keep_typed(request: HttpRequest, page: str) -> None:
    typed = request.POST.copy()
    for name in NOT_TYPED:
        typed.pop(name, None)
    text = typed.urlencode()
    if text and len(text) <= MOST_TYPED_BYTES:
        request.session[TYPED] = {"page": urlsplit(page).path, "typed": secrets.encrypt(text).decode()}
