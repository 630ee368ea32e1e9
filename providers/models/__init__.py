"""Models of providers, by subject."""

from providers.models.applications import Application, ApplicationEntry, ApplicationEvent, Provider
from providers.models.catalogue import GpuModel, GpuVariant, VariantExpectation
from providers.models.keys import EnrolmentKey
from providers.models.machines import Gpu, Machine, MaintenanceWindow, Schedule
from providers.models.work import GpuClaim, Workload, WorkloadLog

__all__ = [
    "Application",
    "ApplicationEntry",
    "ApplicationEvent",
    "EnrolmentKey",
    "Gpu",
    "GpuClaim",
    "GpuModel",
    "GpuVariant",
    "Machine",
    "MaintenanceWindow",
    "Provider",
    "Schedule",
    "VariantExpectation",
    "Workload",
    "WorkloadLog",
]
