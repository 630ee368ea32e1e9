"""Settings of the providing organisation: its name, its keys, who is told what in which language."""

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as _lazy
from django.views.decorators.http import require_http_methods

from gpunex.accounts.models import Membership, Organisation
from gpunex.desk import Desk
from gpunex.policy.models import TierPolicy
from providers.models import EnrolmentKey
from providers.views.access import provider_page


class OrganisationForm(forms.ModelForm):
    class Meta:
        model = Organisation
        fields = ("name",)
        labels = {"name": _lazy("Name of the organisation")}
        help_texts = {"name": _lazy("As it stands on your pages and statements.")}
        widgets = {"name": forms.TextInput(attrs={"autocomplete": "organization", "dir": "auto"})}

    def clean_name(self) -> str:
        return " ".join(self.cleaned_data["name"].split())


@provider_page
@require_http_methods(["GET", "HEAD", "POST"])
def settings(request: HttpRequest) -> HttpResponse:
    """The organisation's name can be changed by its owners; the rest shows what holds and leads to where it is set."""
    desk: Desk = request.desk
    organisation = Organisation.objects.get(pk=desk.provider.organisation_id)
    owners = (
        Membership.objects.filter(organisation=organisation, role=Membership.Role.OWNER)
        .select_related("user")
        .order_by("pk")
    )
    is_owner = any(membership.user_id == request.user.pk for membership in owners)
    form = OrganisationForm(request.POST if request.method == "POST" else None, instance=organisation)
    if request.method == "POST":
        if not is_owner:
            raise PermissionDenied
        if form.is_valid():
            form.save()
            messages.success(request, _("The organisation is now called %(name)s.") % {"name": organisation.name})
            return redirect("providers:settings")
    keys = EnrolmentKey.objects.filter(provider=desk.provider, kind=EnrolmentKey.Kind.API_KEY).usable(desk.at)
    context = {
        "nav": "settings",
        "form": form,
        "is_owner": is_owner,
        "provider": desk.provider,
        "fee": TierPolicy.of(desk.provider.tier).fee_bps / 100,
        "keys": keys.count(),
        "owners": [membership.user for membership in owners],
    }
    return render(request, "providers/settings.html", context, status=422 if form.errors else 200)
