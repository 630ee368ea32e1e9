"""What connects a machine: single-use enrolment tokens (by mail) and long-lived API keys (from the dashboard).

Each is shown once, by the call that makes it; the row keeps a SHA-256 and the public beginning. A token is spent by the
first host that enrols with it, and that host may present it again (a lost answer must not lock it out).
"""

from datetime import datetime, timedelta

from django.db import transaction
from django.utils.translation import gettext_lazy as _

from gpunex.accounts.models import User
from gpunex.kit.refusals import Refusal
from gpunex.kit.secrets import digest, new_token
from gpunex.policy.models import Policy
from providers.models import Application, EnrolmentKey, Provider

TOKEN_PREFIX = "gpxe"
API_KEY_PREFIX = "gpxk"
# A rotated key works on for a day, so that an installation under way does not fail.
ROTATION_OVERLAP = timedelta(hours=24)


class KeyUnknown(Refusal):
    code = "key_unknown"
    message = _("No key or token reads like this. Copy it whole, or make a new one in the provider dashboard.")


class KeyUsed(Refusal):
    code = "key_used"
    message = _(
        "This enrolment token has connected another machine already. Make a new one, or an API key, in the provider dashboard."
    )


class KeyExpired(Refusal):
    code = "key_expired"
    message = _("This key or token has expired. Make a new one in the provider dashboard.")


class KeyRevoked(Refusal):
    code = "key_revoked"
    message = _("This key was revoked. Make a new one in the provider dashboard.")


class KeyNameMissing(Refusal):
    code = "key_name_missing"
    message = _("Give the key a name that says where it is used, like “rack 4”.")


@transaction.atomic
def make_token(*, provider: Provider, application: Application | None, at: datetime, by: User | None = None) -> str:
    """A fresh single-use token, valid for the policy's days. Returns its whole text: the only time it can be seen."""
    text, prefix, sha256 = new_token(TOKEN_PREFIX)
    EnrolmentKey.objects.create(
        provider=provider,
        kind=EnrolmentKey.Kind.TOKEN,
        prefix=prefix,
        hash=sha256,
        application=application,
        created_by=by,
        created_at=at,
        expires_at=token_expiry(at=at),
    )
    return text


def token_expiry(*, at: datetime) -> datetime:
    """Until when a token made at ``at`` can be used."""
    return at + timedelta(days=Policy.load().enrolment_token_days)


@transaction.atomic
def make_api_key(*, provider: Provider, name: str, by: User, at: datetime) -> str:
    """A named key that connects any number of machines until it is revoked. Returns its whole text, once.

    Raises KeyNameMissing.
    """
    name = " ".join("".join(letter if letter.isprintable() else " " for letter in name).split())
    if not name:
        raise KeyNameMissing
    text, prefix, sha256 = new_token(API_KEY_PREFIX)
    EnrolmentKey.objects.create(
        provider=provider,
        kind=EnrolmentKey.Kind.API_KEY,
        name=name[:60],
        prefix=prefix,
        hash=sha256,
        created_by=by,
        created_at=at,
    )
    return text


@transaction.atomic
def rotate(*, key: EnrolmentKey, by: User, at: datetime) -> str:
    """A new key of the same name; the old one works on for ROTATION_OVERLAP. Raises KeyRevoked, KeyExpired.

    Machines that are connected are not concerned: each has a secret of its own.
    """
    key = EnrolmentKey.objects.select_for_update().get(pk=key.pk, kind=EnrolmentKey.Kind.API_KEY)
    _refuse_ended(key, at)
    if key.expires_at is None:
        key.expires_at = at + ROTATION_OVERLAP
        key.save(update_fields=["expires_at"])
    return make_api_key(provider=key.provider, name=key.name, by=by, at=at)


@transaction.atomic
def revoke(*, key: EnrolmentKey, by: User, at: datetime) -> None:
    """From now on nothing enrols with the key; machines enrolled by it stay connected. Repeating it is harmless."""
    EnrolmentKey.objects.filter(pk=key.pk, revoked_at=None).update(revoked_at=at)


@transaction.atomic
def verify(*, text: str, fingerprint: str, address: str | None, at: datetime) -> EnrolmentKey:
    """The key that ``text`` is, noting where it was used; a token is spent for the host of ``fingerprint``.

    Two hosts at once with one token: the row lock lets one through, the other gets KeyUsed. Call it inside the
    transaction of the enrolment: one that fails gives the token back. Raises KeyUnknown, KeyRevoked, KeyUsed, KeyExpired.
    """
    key = (
        EnrolmentKey.objects.select_for_update(of=("self",))
        .select_related("provider")
        .filter(hash=digest(text.strip()))
        .first()
    )
    if key is None:
        raise KeyUnknown
    if (
        key.revoked_at is None
        and key.kind == EnrolmentKey.Kind.TOKEN
        and key.used_at
        and key.used_fingerprint != fingerprint
    ):
        raise KeyUsed
    _refuse_ended(key, at)
    if key.kind == EnrolmentKey.Kind.TOKEN and key.used_at is None:
        key.used_at, key.used_fingerprint = at, fingerprint
    key.last_used_at, key.last_used_from = at, address
    key.save(update_fields=["used_at", "used_fingerprint", "last_used_at", "last_used_from"])
    return key


def refuse_unusable(*, text: str, at: datetime) -> None:
    """Raises KeyUnknown, KeyRevoked, KeyUsed, KeyExpired where ``verify`` would for a host that is not known yet."""
    key = EnrolmentKey.objects.filter(hash=digest(text.strip())).first()
    if key is None:
        raise KeyUnknown
    if key.revoked_at is None and key.kind == EnrolmentKey.Kind.TOKEN and key.used_at:
        raise KeyUsed
    _refuse_ended(key, at)


def _refuse_ended(key: EnrolmentKey, at: datetime) -> None:
    if key.revoked_at is not None:
        raise KeyRevoked
    if key.expires_at is not None and key.expires_at <= at:
        raise KeyExpired
