"""``manage.py verify_payout ID [--json]``: prove one payout, from the ledger's lines to the chain or the bank."""

import json
import uuid
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from payouts.models import Payout
from payouts.verify import Outcome, verify


class Command(BaseCommand):
    help = "Prove a payout: its statement, its lines in the ledger, and the chain or the bank. Exit status 1 if anything is off."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("id", type=uuid.UUID, help="the payout's id, as on its receipt and in the memo on chain")
        parser.add_argument("--json", action="store_true", help="machine-readable output")

    def handle(self, *args: Any, **options: Any) -> None:
        payout = Payout.objects.select_related("run", "organisation").filter(public_id=options["id"]).first()
        if payout is None:
            raise CommandError(f"There is no payout {options['id']}.", returncode=1)
        result = verify(payout)
        if options["json"]:
            summary = {
                "payout": str(payout.public_id),
                "state": payout.state,
                "amount_micro": payout.amount_micro,
                "statement_sha256": payout.statement_sha256,
                "all_passed": result.all_passed,
                "checks": [
                    {"name": check.name, "outcome": check.outcome, "detail": check.detail} for check in result.checks
                ],
            }
            self.stdout.write(json.dumps(summary, indent=2))
        else:
            for check in result.checks:
                mark = "ok  " if check.outcome == Outcome.PASSED else f"{check.outcome} "
                self.stdout.write(f"{mark} {check.name}: {check.detail}")
        if not result.all_passed:
            raise CommandError(f"This payout is not proved: {'; '.join(result.problems)}", returncode=1)
        if not options["json"]:
            self.stdout.write(
                "All checks passed." if payout.state == Payout.State.PAID else f"Nothing is off; it is {payout.state}."
            )
