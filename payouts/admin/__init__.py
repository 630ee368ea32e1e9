"""The administration of payouts, a module a subject."""

from payouts.admin import bank, methods, payouts, rates, runs

__all__ = ["bank", "methods", "payouts", "rates", "runs"]
