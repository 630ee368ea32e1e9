"""A cast and the answers of a good application, for the tests of applying."""

from datetime import datetime
from decimal import Decimal
from typing import Any

from gpunex.accounts.models import Organisation, User
from gpunex.accounts.organisations import open_personal
from providers import applications
from providers.applications import Answers, EntryAnswers
from providers.models import Application, GpuModel


def person(name: str, *, language: str = "en", staff: bool = False, at: datetime) -> User:
    user = User.objects.create_user(
        f"{name.lower()}@example.com", None, full_name=name, language=language, is_staff=staff, is_superuser=staff
    )
    open_personal(user=user, at=at)
    return user


def organisation_of(user: User) -> Organisation:
    return Organisation.objects.get(created_by=user)


def entry(**changes: Any) -> EntryAnswers:
    good = {
        "gpu_model": GpuModel.objects.get(slug="h100-80gb"),
        "quantity": 2,
        "host_memory_gb": 512,
        "download_gbps": Decimal("10"),
        "upload_gbps": Decimal("10"),
        "country": "DE",
        "city": "Berlin",
    }
    return EntryAnswers(**good | changes)


def answers(**changes: Any) -> Answers:
    good: dict[str, Any] = {
        "full_name": "Yusuf Darwish",
        "email": "yusuf@example.com",
        "ups": True,
        "commitment_months": 6,
    }
    return Answers(**good | {"entries": [entry()]} | changes)


def submitted(user: User, *, at: datetime, **changes: Any) -> Application:
    draft = applications.open_application(organisation=organisation_of(user), by=user, at=at)
    return applications.submit(application=draft, answers=answers(**changes), by=user, at=at)


def typed(**changes: str | list[str]) -> dict[str, Any]:
    """The form as filled in by hand: two entries, the second by a weekly schedule over midnight."""
    good: dict[str, Any] = {
        "full_name": "Yusuf Darwish",
        "email": "yusuf@example.com",
        "company": "",
        "commitment_months": "6",
        "ups": "on",
        "maintenance_notes": "Two hours on the first Sunday of each month.",
        "row": ["0", "1"],
    }
    first = {
        "gpu_model": "rtx-a6000-48gb",
        "other_model": "",
        "quantity": "4",
        "host_memory_gb": "256",
        "download_gbps": "1.0",
        "upload_gbps": "1.0",
        "country": "JO",
        "city": "Amman",
        "datacenter_region": "",
        "availability": "always",
        "timezone": "",
    }
    second = first | {
        "gpu_model": "rtx-4090-24gb",
        "quantity": "2",
        "host_memory_gb": "64",
        "download_gbps": "0.6",
        "upload_gbps": "0.3",
        "availability": "weekly",
        "timezone": "Asia/Amman",
        "hours": [str(hour) for hour in range(22, 30)],
    }
    for number, values in enumerate((first, second)):
        good |= {f"entry-{number}-{name}": value for name, value in values.items()}
    return good | changes
