"""The clock. Every task is a periodic, idempotent sweep over rows in a state; this table lists all of them.

Rows are the queue: losing Redis, a worker or a beat costs time, never work. ``manage.py sweep NAME`` runs one by hand.
"""

import os
from dataclasses import dataclass

from celery import Celery
from celery.signals import worker_init

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gpunex.settings")
app = Celery("gpunex")


@dataclass(frozen=True)
class Sweep:
    """A task, by its dotted name, and how often it runs, in seconds."""

    task: str
    every: float


SWEEPS: dict[str, Sweep] = {
    "mail": Sweep("gpunex.outbox.tasks.deliver_mail", 2),
    "connections": Sweep("reliability.tasks.watch_connections", 5),
    "benchmarks": Sweep("reliability.tasks.request_benchmarks", 3),
    "scores": Sweep("reliability.tasks.refresh_scores", 20),
    "days": Sweep("reliability.tasks.keep_days", 600),
    "telemetry": Sweep("reliability.tasks.keep_telemetry", 120),
    "floors": Sweep("reliability.tasks.judge_floors", 300),
    "anomalies": Sweep("reliability.tasks.look_for_anomalies", 300),
    "maintenance": Sweep("marketplace.tasks.warn_of_maintenance", 300),
    "clocks": Sweep("reliability.tasks.tell_clocks", 600),
    "proofs": Sweep("marketplace.tasks.prove_rentals", 5),
    "rentals": Sweep("marketplace.tasks.end_rentals", 5),
    "listings": Sweep("marketplace.tasks.refresh_listings", 15),
    "meters": Sweep("billing.tasks.settle_meters", 20),
    "balance_warnings": Sweep("billing.tasks.balance_warnings", 60),
    "deposits": Sweep("billing.tasks.find_deposits", 3),
    "deposit_requests": Sweep("billing.tasks.watch_deposit_requests", 5),
    "strays": Sweep("billing.tasks.find_strays", 60),
    "deposit_sweeps": Sweep("billing.tasks.sweep_deposits", 30),
    "statements": Sweep("billing.tasks.issue_statements", 3600),
    "payout_runs": Sweep("payouts.tasks.make_due_runs", 300),
    "payouts": Sweep("payouts.tasks.advance_payouts", 2),
}

app.config_from_object("django.conf:settings", namespace="CELERY")
app.conf.update(
    timezone="UTC",
    enable_utc=True,
    task_ignore_result=True,
    task_acks_late=False,
    worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
    beat_schedule={
        name: {
            "task": "gpunex.sweeps.run",
            "schedule": sweep.every,
            "args": (name,),
            "options": {"expires": sweep.every},
        }
        for name, sweep in SWEEPS.items()
    },
    imports=["gpunex.sweeps"],
)
app.autodiscover_tasks()


@worker_init.connect
def verify_chain(**_: object) -> None:
    """A worker that would pay on the wrong chain does not start."""
    from gpunex.chain.identity import verify_at_start  # settings are read by then

    verify_at_start()
