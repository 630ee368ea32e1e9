from typing import Any

from allauth.account.models import EmailAddress
from allauth.mfa.models import Authenticator
from axes.models import AccessAttempt, AccessFailureLog, AccessLog
from django.contrib import admin
from django.contrib.auth.models import Group
from django.db import transaction
from django.db.models import Model, QuerySet
from django.http import HttpRequest
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from gpunex.accounts import members
from gpunex.accounts.members import Did
from gpunex.accounts.models import Membership, Organisation, User
from gpunex.kit.registers import ReadOnlyAdmin, ReadOnlyInline, TellingAdmin
from payouts.notices import alert

# Who may approve payouts and corrections: whoever changes it does not do so unseen.
RIGHTS = ("is_staff", "is_superuser", "groups")

# A second factor's secret is nobody's to look at; it is removed by its owner, or by the row's removal in an emergency.
admin.site.unregister(Authenticator)
for _model in (EmailAddress, Group, AccessAttempt, AccessFailureLog, AccessLog):
    if admin.site.is_registered(_model):
        admin.site.unregister(_model)


class MembershipInline(ReadOnlyInline):
    model = Membership
    fields = ["user", "organisation", "role", "created_at"]


@admin.register(User)
class UserAdmin(TellingAdmin):
    """People. Their email is theirs to change, with its verification; only a superuser makes staff."""

    list_display = ["email", "full_name", "language", "is_staff", "is_active", "date_joined"]
    list_filter = ["is_staff", "is_active", "language"]
    search_fields = ["email", "full_name"]
    ordering = ["-date_joined"]
    fields = [
        "email",
        "full_name",
        "language",
        "timezone",
        "is_active",
        "is_staff",
        "is_superuser",
        "groups",
        "last_login",
        "date_joined",
    ]
    filter_horizontal = ["groups"]
    inlines = [MembershipInline]

    def get_readonly_fields(self, request: HttpRequest, obj: Model | None = None) -> Any:
        kept = ["email", "last_login", "date_joined"]
        return kept if request.user.is_superuser else [*kept, "is_staff", "is_superuser", "groups"]

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        # Nobody below a superuser edits one.
        above = isinstance(obj, User) and obj.is_superuser and not request.user.is_superuser
        return not above and super().has_change_permission(request, obj)

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        """Two administrators are two people only as long as all of them see who becomes one."""
        super().save_model(request, obj, form, change)
        if not set(RIGHTS).isdisjoint(form.changed_data):
            at = timezone.now()
            alert(
                key=f"rights:{obj.pk}:{at.isoformat()}",
                what=_("who administers was changed"),
                detail=_("%(by)s changed what %(who)s may do in the administration."),
                data={"by": request.user.email, "who": obj.email},
                at=at,
            )


@admin.register(Organisation)
class OrganisationAdmin(TellingAdmin):
    list_display = ["name", "personal", "created_by", "created_at"]
    list_filter = ["personal"]
    search_fields = ["name", "created_by__email"]
    ordering = ["-created_at"]
    fields = ["name", "personal", "created_by", "created_at", "public_id"]
    readonly_fields = ["personal", "created_by", "created_at", "public_id"]
    inlines = [MembershipInline]

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False


@admin.register(Membership)
class MembershipAdmin(TellingAdmin):
    list_display = ["user", "organisation", "role", "created_at"]
    list_filter = ["role"]
    search_fields = ["user__email", "organisation__name"]
    autocomplete_fields = ["user", "organisation"]
    fields = ["user", "organisation", "role", "created_at"]

    def get_readonly_fields(self, request: HttpRequest, obj: Model | None = None) -> Any:
        # Since when somebody belongs to it decides what they may do; for another person there is another row.
        return ["created_at"] if obj is None else ["user", "organisation", "created_at"]

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        super().save_model(request, obj, form, change)
        if form.changed_data:
            members.tell(membership=obj, did=Did.CHANGED if change else Did.ADDED, at=timezone.now())

    def delete_model(self, request: HttpRequest, obj: Any) -> None:
        members.tell(membership=obj, did=Did.REMOVED, at=timezone.now())
        super().delete_model(request, obj)

    @transaction.atomic
    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Membership]) -> None:
        for membership in queryset.select_related("organisation", "user"):
            self.delete_model(request, membership)


@admin.register(Group)
class GroupAdmin(TellingAdmin):
    search_fields = ["name"]
    filter_horizontal = ["permissions"]


@admin.register(EmailAddress)
class EmailAddressAdmin(ReadOnlyAdmin):
    list_display = ["email", "user", "verified", "primary"]
    list_filter = ["verified"]
    search_fields = ["email"]


@admin.register(AccessAttempt)
class AccessAttemptAdmin(ReadOnlyAdmin):
    list_display = ["attempt_time", "ip_address", "username", "failures_since_start"]
    search_fields = ["username", "ip_address"]
    # What was posted may hold a password typed into the wrong field.
    exclude = ["get_data", "post_data"]
