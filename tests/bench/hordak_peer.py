"""Single transfers with django-hordak 2.0.0. Run by its own Python in a throw-away environment, never imported by ours.

    python hordak_peer.py DATABASE_NAME HOST PORT USER PASSWORD CLIENTS EACH

Prints two numbers, in transfers a second: transfers alone, and the same where each looks first, under a lock, whether the source has
enough, as our ledger does for every account with a floor. Each client has two accounts of its own and commits every transfer.
"""

import sys
import threading
import time

import django
from django.conf import settings

name, host, port, user, password, clients, each = sys.argv[1:]
settings.configure(
    SECRET_KEY="bench",
    USE_TZ=True,
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
    INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "mptt", "hordak"],
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": name,
            "HOST": host,
            "PORT": port,
            "USER": user,
            "PASSWORD": password,
        }
    },
    HORDAK_DECIMAL_PLACES=6,
    HORDAK_MAX_DIGITS=18,
    DEFAULT_CURRENCY="USD",
    CURRENCIES=["USD"],
)
django.setup()

from django.core.management import call_command  # noqa: E402
from django.db import connections, transaction  # noqa: E402
from hordak.models import Account, AccountType  # noqa: E402
from moneyed import Money  # noqa: E402

call_command("migrate", verbosity=0, interactive=False)


def make(code: str) -> Account:
    return Account.objects.create(name=code, code=code, type=AccountType.asset, currencies=["USD"])


bank = Account.objects.create(name="bank", code="0", type=AccountType.asset, currencies=["USD"])
sources = [make(f"1{number:03d}") for number in range(int(clients))]
targets = [make(f"2{number:03d}") for number in range(int(clients))]
for source in sources:
    with transaction.atomic():
        bank.transfer_to(source, Money(1000000, "USD"))


def move(number: int, *, look: bool) -> None:
    amount = Money("0.000007", "USD")
    for _ in range(int(each)):
        with transaction.atomic():
            if look:
                locked = Account.objects.select_for_update().get(pk=sources[number].pk)
                assert locked.get_simple_balance()["USD"] >= amount
            sources[number].transfer_to(targets[number], amount)
    connections.close_all()


def together(look: bool) -> float:
    workers = [threading.Thread(target=move, args=(number,), kwargs={"look": look}) for number in range(int(clients))]
    begun = time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return int(clients) * int(each) / (time.perf_counter() - begun)


together(False)  # warms up
sys.stdout.write(f"{together(False)} {together(True)}\n")
