"""One pass over many payouts: what concerns one alone stops only that one."""

from collections.abc import Iterator
from contextlib import contextmanager

import structlog

from gpunex.chain.rpc import RpcUnavailable
from payouts.models import Payout

log = structlog.get_logger(__name__)


@contextmanager
def never_stopping_the_rest(payout: Payout) -> Iterator[None]:
    """A node's silence ends the pass; any other failure concerns this payout alone, and the next pass tries it again."""
    try:
        yield
    except RpcUnavailable:
        raise
    except Exception:
        log.exception("payout_not_moved", payout=str(payout.public_id))
