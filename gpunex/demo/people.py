"""The demonstration's people. Their password is public: they exist in embedded mode only."""

from dataclasses import dataclass

from allauth.account.models import EmailAddress
from django.conf import settings
from django.db import transaction
from django.utils import timezone

from gpunex.accounts.models import Organisation, User
from gpunex.accounts.organisations import open_personal

PASSWORD = "gpunex-demo-2026"


@dataclass(frozen=True)
class Person:
    role: str
    email: str
    name: str
    language: str = "en"


ADMIN = Person("administrator", "admin@gpunex.example", "Amal Haddad")
RENTER = Person("renter", "renter@gpunex.example", "Noor Rahman")
PROVIDER = Person("provider", "provider@gpunex.example", "Rami Darwish")
PROVIDER_AR = Person("provider, in Arabic", "mazwid@gpunex.example", "ليلى المنصوري", "ar")
SHOWN = (ADMIN, RENTER, PROVIDER, PROVIDER_AR)


@transaction.atomic
def ensure(person: Person, *, staff: bool = False, organisation: str = "") -> Organisation:
    """The person's account with a confirmed address, made once. Raises RuntimeError outside embedded mode."""
    if not settings.EMBEDDED:
        raise RuntimeError("the demonstration's people exist in embedded mode only")
    user = User.objects.filter(email=person.email).first()
    if user is None:
        make = User.objects.create_superuser if staff else User.objects.create_user
        user = make(person.email, PASSWORD, full_name=person.name, language=person.language)
        EmailAddress.objects.create(user=user, email=person.email, verified=True, primary=True)
    found = open_personal(user=user, at=timezone.now())
    if organisation and found.name != organisation:
        found.name, found.personal = organisation, True
        found.save(update_fields=["name"])
    return found


def ensure_admin() -> Organisation:
    return ensure(ADMIN, staff=True)
