"""A client whose person confirmed a moment ago, as pages ask for that change where money goes."""

import time

from allauth.account.internal.flows.login import (
    _AUTHENTICATION_METHODS_USER_SESSION_KEY as CONFIRMED_USER,
)
from allauth.account.internal.flows.login import AUTHENTICATION_METHODS_SESSION_KEY as CONFIRMATIONS
from django.contrib.auth import HASH_SESSION_KEY
from django.test import Client

from gpunex.accounts.models import User


def confirm(client: Client, user: User, *, method: str = "password", seconds_ago: float = 0) -> Client:
    """As if ``user``, who is signed in at ``client``, had typed the password again, or, with "mfa", used a second factor."""
    session = client.session
    if not user.has_usable_password():
        # Whoever has nothing to confirm with cannot have confirmed.
        user.password = "of no hasher"
        user.save(update_fields=["password"])
        session[HASH_SESSION_KEY] = user.get_session_auth_hash()
    session[CONFIRMED_USER] = str(user.pk)
    session[CONFIRMATIONS] = [{"method": method, "at": time.time() - seconds_ago, "reauthenticated": True}]
    session.save()
    return client
