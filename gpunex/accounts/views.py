"""Pages of an account: settings, language, theme, which organisation one acts for, and what one was told."""

from uuid import UUID

from django.conf import settings
from django.contrib import messages
from django.contrib.auth.decorators import login_not_required
from django.core.paginator import Paginator
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone, translation
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.translation import gettext
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from gpunex.accounts.forms import ProfileForm
from gpunex.accounts.models import Notice, User
from gpunex.accounts.notices import in_words
from gpunex.accounts.organisations import organisation_of
from gpunex.kit.time import zone_names


def _back(request: HttpRequest) -> HttpResponse:
    target = request.POST.get("next") or "/"
    if not target.isprintable() or not url_has_allowed_host_and_scheme(
        target, allowed_hosts={request.get_host()}, require_https=request.is_secure()
    ):
        target = "/"
    return redirect(target)


@login_not_required
@require_POST
def language(request: HttpRequest) -> HttpResponse:
    """Speak another language from now on: kept in a cookie, and on the account if signed in."""
    chosen = request.POST.get("language", "")
    response = _back(request)
    if chosen in dict(settings.LANGUAGES):
        response.set_cookie(
            settings.LANGUAGE_COOKIE_NAME, chosen, max_age=365 * 86400, samesite="Lax", secure=request.is_secure()
        )
        if request.user.is_authenticated:
            User.objects.filter(pk=request.user.pk).update(language=chosen)
    return response


@require_POST
def theme(request: HttpRequest) -> HttpResponse:
    """Remember light or dark on the account; anything else means "as the device"."""
    chosen = request.POST.get("theme", "")
    User.objects.filter(pk=request.user.pk).update(theme=chosen if chosen in {"light", "dark"} else "")
    return HttpResponse(status=204) if request.headers.get("HX-Request") else _back(request)


@require_POST
def organisation(request: HttpRequest) -> HttpResponse:
    """Act for another of one's organisations."""
    try:
        wanted = UUID(request.POST.get("organisation", ""))
    except ValueError:
        raise Http404 from None
    membership = get_object_or_404(request.user.memberships, organisation__public_id=wanted)
    request.session["organisation"] = str(membership.organisation.public_id)
    return _back(request)


@require_http_methods(["GET", "HEAD", "POST"])
def settings_page(request: HttpRequest) -> HttpResponse:
    """Name, language, time zone and appearance of the person. The answer speaks the language that was just chosen."""
    user = User.objects.get(pk=request.user.pk)
    form = ProfileForm(request.POST or None, instance=user)
    if request.method == "POST":
        if form.is_valid():
            form.save()
            with translation.override(user.language):
                messages.success(request, gettext("Your settings are kept."))
            response = redirect("accounts:settings")
            response.set_cookie(
                settings.LANGUAGE_COOKIE_NAME,
                user.language,
                max_age=365 * 86400,
                samesite="Lax",
                secure=request.is_secure(),
            )
            return response
        return render(
            request, "accounts/settings.html", {"nav": "account", "form": form, "zones": zone_names()}, status=422
        )
    return render(request, "accounts/settings.html", {"nav": "account", "form": form, "zones": zone_names()})


@require_safe
def notices(request: HttpRequest) -> HttpResponse:
    """What the organisation was told, the newest first. Opening the page marks what it shows as read."""
    page = Paginator(
        Notice.objects.filter(organisation=organisation_of(request)).order_by("-created_at", "-pk"), 30
    ).get_page(request.GET.get("page"))
    rows = [in_words(notice) | {"unread": notice.read_at is None} for notice in page]
    Notice.objects.filter(pk__in=[notice.pk for notice in page], read_at=None).update(read_at=timezone.now())
    return render(request, "accounts/notices.html", {"page": page, "rows": rows, "nav": "notices"})
