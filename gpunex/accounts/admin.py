from typing import Any

from allauth.account.models import EmailAddress
from allauth.mfa.models import Authenticator
from axes.models import AccessAttempt, AccessFailureLog, AccessLog
from django.contrib import admin
from django.contrib.auth.models import Group
from django.db.models import Model
from django.http import HttpRequest

from gpunex.accounts.models import Membership, Organisation, User
from gpunex.kit.registers import ReadOnlyAdmin, ReadOnlyInline, TellingAdmin

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
