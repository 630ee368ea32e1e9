"""Secrets: random tokens stored as hashes, and values encrypted with keys that rotate.

A token has 256 random bits, so a plain SHA-256 is enough: there is nothing to guess. Passwords are Django's business.
"""

import hashlib
import hmac
import json
import secrets
from typing import Any

from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from django.conf import settings


def new_token(prefix: str) -> tuple[str, str, str]:
    """A fresh secret as ``(whole text, public prefix, sha256 hex)``. Show the whole text once; store the other two."""
    public = secrets.token_hex(4)
    text = f"{prefix}_{public}_{secrets.token_urlsafe(32)}"
    return text, f"{prefix}_{public}", digest(text)


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def same(left: str, right: str) -> bool:
    return hmac.compare_digest(left.encode(), right.encode())


def _fernet() -> MultiFernet:
    return MultiFernet([Fernet(key) for key in settings.FIELD_KEYS])


def encrypt(value: Any) -> bytes:
    """JSON-encodes and encrypts with the first of ``FIELD_KEYS``."""
    return _fernet().encrypt(json.dumps(value).encode())


def decrypt(blob: bytes | memoryview) -> Any:
    """Reverse of ``encrypt`` with any of ``FIELD_KEYS``. Raises ValueError if none of them fits."""
    try:
        return json.loads(_fernet().decrypt(bytes(blob)))
    except InvalidToken as error:
        raise ValueError("no key of FIELD_KEYS opens this value") from error
