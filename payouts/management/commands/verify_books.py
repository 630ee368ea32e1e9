"""``manage.py verify_books [--json]``: prove the ledger, the payouts and the chain against one another."""

import json
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from billing.models import Transfer
from gpunex.chain.rpc import RpcError, RpcUnavailable
from payouts.books import verify_books


class Command(BaseCommand):
    help = "Prove the books: floors, balances, sums, each provider's earnings, and the chain. Exit status 1 if anything is off."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--json", action="store_true", help="machine-readable output")
        parser.add_argument("--ledger-only", action="store_true", help="leave the chain out")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            report = verify_books(with_chain=not options["ledger_only"])
        except (RpcUnavailable, RpcError) as error:
            raise CommandError(f"The chain could not be read, so the books are not proved: {error}") from error
        if options["json"]:
            checks = [{"name": check.name, "figure": check.figure, "off": check.off} for check in report.checks]
            summary = {"drift_micro": report.drift_micro, "transfers": Transfer.objects.count(), "checks": checks}
            self.stdout.write(json.dumps(summary, indent=2))
        else:
            for check in report.checks:
                self.stdout.write(f"{'bad ' if check.off else 'ok  '} {check.name}: {check.figure}")
            for problem in report.problems:
                self.stdout.write(self.style.ERROR(problem))
            self.stdout.write(f"drift: {report.drift_micro} micro-USDC")
        if report.drift_micro:
            raise CommandError(f"The books are off by {report.drift_micro} micro-USDC.", returncode=1)
