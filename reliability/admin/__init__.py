"""The administration of reliability: what machines did, what is odd, floors, and what people ask. A module a subject."""

from reliability.admin import anomalies, cases, floors, formulas, incidents, machines, records

__all__ = ["anomalies", "cases", "floors", "formulas", "incidents", "machines", "records"]
