"""Refusals: what a person asked for and cannot have, said in their language with what to do next.

A page or endpoint catches ``Refusal`` and shows ``str(refusal)``; anything else that is raised is a bug and answers 500.
"""

from typing import Any

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _


class Refusal(Exception):
    """An anticipated, translated "no". ``code`` is stable and machine-readable; ``message`` may hold ``%(name)s`` fields.

    >>> class TooFew(Refusal):
    ...     code = "too_few"
    ...     message = "At least %(least)s are needed."
    >>> str(TooFew(least=2))
    'At least 2 are needed.'
    """

    code: str = "refused"
    message: str | Promise = _("This is not possible now. Nothing was changed.")

    def __init__(self, **fields: Any) -> None:
        super().__init__()
        self.fields = fields

    def __str__(self) -> str:
        # Formatted late, so that the language is the reader's and not the one of the place that raised it.
        return str(self.message) % self.fields if self.fields else str(self.message)
