"""The keys that connect machines, the page that says how, and the installer itself."""

from typing import Any

from django.conf import settings
from django.contrib import messages
from django.contrib.auth.decorators import login_not_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from gpunex.kit.refusals import Refusal
from gpunex.policy.models import Policy
from providers import keys
from providers.models import Application, EnrolmentKey, Machine, Provider
from providers.views.access import provider_page

INSTALL_SCRIPT = settings.BASE_DIR / "agent" / "install.sh"


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
@provider_page
def key_list(request: HttpRequest) -> HttpResponse:
    """API keys and open tokens. A key is made here and shown in the answer to that, never again."""
    provider = request.desk.provider
    made, refusal = "", ""
    if request.method == "POST":
        try:
            made = keys.make_api_key(
                provider=provider, name=request.POST.get("name", ""), by=request.user, at=timezone.now()
            )
        except Refusal as caught:
            refusal = str(caught)
    return _keys_page(
        request, provider, made=made, refusal=refusal, typed=request.POST.get("name", "") if refusal else ""
    )


@never_cache
@require_POST
@provider_page
def rotate(request: HttpRequest, pk: int) -> HttpResponse:
    provider = request.desk.provider
    key = get_object_or_404(EnrolmentKey, pk=pk, provider=provider, kind=EnrolmentKey.Kind.API_KEY)
    try:
        made = keys.rotate(key=key, by=request.user, at=timezone.now())
    except Refusal as refusal:
        return _keys_page(request, provider, refusal=str(refusal))
    return _keys_page(request, provider, made=made)


@require_POST
@provider_page
def revoke(request: HttpRequest, pk: int) -> HttpResponse:
    key = get_object_or_404(EnrolmentKey, pk=pk, provider=request.desk.provider)
    keys.revoke(key=key, by=request.user, at=timezone.now())
    messages.success(
        request, _("%(prefix)s… is revoked. Machines it connected stay connected.") % {"prefix": key.prefix}
    )
    return redirect("providers:keys")


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
@provider_page
def install(request: HttpRequest) -> HttpResponse:
    """The line to run on a GPU machine, and a fresh token for it."""
    provider, at = request.desk.provider, timezone.now()
    token = ""
    if request.method == "POST":
        approved = Application.objects.filter(organisation=provider.organisation, state=Application.State.APPROVED)
        token = keys.make_token(
            provider=provider, application=approved.order_by("-decided_at").first(), by=request.user, at=at
        )
    machines = list(Machine.objects.filter(provider=provider).live().order_by("-enrolled_at")[:10])
    policy = Policy.load()
    return render(
        request,
        "providers/install.html",
        {
            "nav": "settings",
            "line": f"curl -fsSL {settings.PUBLIC_URL}/agent | bash",
            "token": token,
            "token_days": policy.enrolment_token_days,
            "simulate": f"GPUNEX_API_KEY={token or '<key>'} .venv/bin/python -m agent --url {settings.PUBLIC_URL} --simulate rtx4090x2"
            if settings.EMBEDDED
            else "",
            "docker": policy.docker_least,
            "toolkit": policy.toolkit_least,
            "tokens": EnrolmentKey.objects.filter(provider=provider, kind=EnrolmentKey.Kind.TOKEN).usable(at).count(),
            "machines": [(machine, machine.is_connected(at, policy.offline_seconds)) for machine in machines],
        },
    )


@login_not_required
@require_safe
def agent_install(request: HttpRequest) -> HttpResponse:
    """GET /agent: the installer as ``curl -fsSL … | bash`` runs it, with this platform's address filled in."""
    try:
        script = INSTALL_SCRIPT.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise Http404 from None
    script = script.replace("@@GPUNEX_URL@@", settings.PUBLIC_URL).replace(
        "@@GPUNEX_AGENT_IMAGE@@", settings.AGENT_IMAGE
    )
    response = HttpResponse(script, content_type="text/x-shellscript; charset=utf-8")
    response["Cache-Control"] = "no-cache"
    return response


def _keys_page(
    request: HttpRequest, provider: Provider, *, made: str = "", refusal: str = "", typed: str = ""
) -> HttpResponse:
    at = timezone.now()
    rows: list[dict[str, Any]] = []
    for key in (
        EnrolmentKey.objects.filter(provider=provider)
        .select_related("created_by")
        .prefetch_related("machines")
        .order_by("-created_at", "-pk")
    ):
        rows.append(
            {
                "key": key,
                "usable": key.is_usable(at),
                "state": _state(key, at),
                "machines": len(key.machines.all()),
                "dialog": str(key.pk),
            }
        )
    return render(
        request,
        "providers/keys.html",
        {
            "nav": "settings",
            "rows": rows,
            "made": made,
            "line": f"curl -fsSL {settings.PUBLIC_URL}/agent | bash",
            "refusal": refusal,
            "typed": typed,
        },
        status=422 if refusal else 200,
    )


def _state(key: EnrolmentKey, at: Any) -> tuple[str, str]:
    """The mark and the word of a key's state."""
    if key.revoked_at:
        return "idle", _("Revoked")
    if key.kind == EnrolmentKey.Kind.TOKEN and key.used_at:
        return "idle", _("Used")
    if key.expires_at and key.expires_at <= at:
        return "idle", _("Expired")
    if key.kind == EnrolmentKey.Kind.API_KEY and key.expires_at:
        return "warn", _("Replaced")
    return "ok", _("Valid")
