"""Which machine a command means."""

from uuid import UUID

from django.core.management.base import CommandError

from providers.models import Machine


def machine_called(text: str) -> Machine:
    """By its public id, or by its name where only one live machine has it. Raises CommandError."""
    try:
        found = list(Machine.objects.filter(public_id=UUID(text)))
    except ValueError:
        found = list(Machine.objects.live().filter(name=text)[:2])
    if not found:
        raise CommandError(f"There is no machine {text!r}.")
    if len(found) > 1:
        raise CommandError(f"Several machines are called {text!r}: give the public id.")
    return found[0]
