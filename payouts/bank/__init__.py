"""Payouts by bank: SEPA in euro and ACH in US dollars.

1. A bank payout is made as any other; with it, a ``BankTransfer`` that fixes currency, cents and rate. What is less than a cent stays payable.
2. Once its run is cleared and its day has come, an administrator makes the run's file. A payout is in one file at most, and the file's bytes
   never change: making or downloading it again gives the same.
3. Handing the file over is done by a person and recorded. From its making on, its payouts may be paid: none of them can be taken back any more.
4. Only what the bank says moves a payout on: settled, rejected, sent back. Each line of its answer is matched by our own id and by its amount;
   a line that does not fit changes nothing and is shown to an administrator.
"""

from payouts.models import FxRate, Rail

CURRENCIES = {Rail.SEPA: FxRate.Currency.EUR, Rail.ACH: FxRate.Currency.USD}
RAILS = tuple(CURRENCIES)


def currency_of(rail: str) -> str:
    """In which currency a bank rail pays: "EUR" or "USD". Raises KeyError for a rail that is no bank's."""
    return CURRENCIES[Rail(rail)].value
