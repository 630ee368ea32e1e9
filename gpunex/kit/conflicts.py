"""Two transactions that stood in each other's way: PostgreSQL ended one of them, and that one may simply be tried again."""

from collections.abc import Callable
from functools import wraps

from django.db import OperationalError, connection

DEADLOCK, SERIALISATION_FAILURE = "40P01", "40001"
TRIES = 3


def retrying[**P, R](operation: Callable[P, R]) -> Callable[P, R]:
    """``operation``, tried again after a deadlock or a serialisation failure; three times in all.

    For whoever begins the transaction: within one nothing can be tried again, since all of it is gone. The operation must be
    harmless to repeat; operations on money are, by their keys.
    """

    @wraps(operation)
    def patient(*args: P.args, **kwargs: P.kwargs) -> R:
        for left in range(TRIES - 1, -1, -1):
            try:
                return operation(*args, **kwargs)
            except OperationalError as error:
                code = getattr(error.__cause__, "pgcode", None)
                if not left or connection.in_atomic_block or code not in {DEADLOCK, SERIALISATION_FAILURE}:
                    raise
        raise AssertionError("unreachable")

    return patient
