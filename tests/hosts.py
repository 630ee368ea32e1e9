"""Providers with an approved application, and hosts that speak to the agent API as the agent does."""

import itertools
import uuid
from datetime import datetime, timedelta
from importlib import import_module
from typing import Any

from django.apps import apps
from django.conf import settings
from django.test import Client

from gpunex.accounts.models import User
from gpunex.accounts.organisations import open_personal
from providers import keys, workloads
from providers.api.fields import ResultFields
from providers.models import (
    Application,
    ApplicationEntry,
    Gpu,
    GpuClaim,
    GpuModel,
    GpuVariant,
    Machine,
    Provider,
    Workload,
)
from reliability import benchmarks
from reliability.models import Benchmark

ROOT = "/api/agent/v1/"
_numbers = itertools.count(1)


def seed_again() -> None:
    """The rows that migrations made: tests whose other processes or threads must see what was written flush them."""
    for migration in ("gpunex.policy.migrations.0002_specification", "providers.migrations.0002_catalogue"):
        import_module(migration).seed(apps, None)


def person(name: str = "someone", **fields: Any) -> User:
    return User.objects.create_user(
        f"{name}-{next(_numbers)}-{uuid.uuid4().hex[:6]}@example.org", full_name=name, **fields
    )


def approved(
    *,
    at: datetime,
    tier: str = "community",
    ups: bool = False,
    entries: list[dict[str, Any]] | None = None,
    **fields: Any,
) -> Provider:
    """A provider whose application was approved, by default with one entry: four RTX 4090 in Cairo, around the clock."""
    user = person("provider")
    organisation = open_personal(user=user, at=at)
    application = Application.objects.create(
        organisation=organisation,
        created_by=user,
        full_name=user.full_name,
        email=user.email,
        ups=ups,
        state=Application.State.APPROVED,
        tier=tier,
        created_at=at,
        decided_at=at,
    )
    for position, entry in enumerate(entries or [{}]):
        add_entry(application, position=position, **entry)
    return Provider.objects.create(organisation=organisation, tier=tier, approved_at=at, commitment_months=6, **fields)


def add_entry(application: Application, *, model: str = "rtx-4090-24gb", **fields: Any) -> ApplicationEntry:
    values: dict[str, Any] = {
        "gpu_model": GpuModel.objects.get(slug=model),
        "quantity": 4,
        "host_memory_gb": 256,
        "download_gbps": "1",
        "upload_gbps": "1",
        "timezone": "Africa/Cairo",
        "country": "EG",
        "city": "Cairo",
    }
    return ApplicationEntry.objects.create(application=application, **values | fields)


def api_key(provider: Provider, *, at: datetime) -> str:
    return keys.make_api_key(provider=provider, name="rack", by=provider.organisation.created_by, at=at)


def card(index: int = 0, *, model: str = "rtx-4090-24gb", variant: str | None = None, **fields: Any) -> dict[str, Any]:
    """One GPU of the protocol's inventory."""
    found = (
        GpuVariant.objects.get(name=variant)
        if variant
        else GpuVariant.objects.filter(model__slug=model).order_by("pk").first()
    )
    assert found is not None
    return {
        "uuid": f"GPU-{uuid.uuid4()}",
        "index": index,
        "name": found.nvml_names[0],
        "vram_mib": found.vram_mib_least + 500,
        "pci_bus_id": f"00000000:{index + 1:02X}:00.0",
        "compute_capability": "8.9",
        "cores": found.cores,
        "memory_bus_bits": found.memory_bus_bits,
        "max_sm_clock_mhz": 2520,
        "max_memory_clock_mhz": 10501,
        "power_limit_w": found.power_w,
        "pcie_generation": 4,
        "pcie_width": 16,
        "ecc_enabled": None,
        "mig_enabled": None,
        "health": "ok",
        "given": True,
    } | fields


def inventory(*cards: dict[str, Any], **host: Any) -> dict[str, Any]:
    facts = {
        "hostname": "rig",
        "os": "Ubuntu 24.04.3 LTS",
        "kernel": "6.8.0",
        "arch": "x86_64",
        "cpu_model": "AMD EPYC 9554",
        "cpu_cores": 64,
        "memory_mib": 512 * 1024,
        "disk_total_gib": 3500.0,
        "disk_free_gib": 3000.0,
        "docker_version": "28.5.1",
        "runc_version": "1.3.3",
        "toolkit_version": "1.18.2",
        "driver_version": "580.95.05",
        "cuda_version": "13.0",
        "boot_id": "boot-1",
    }
    return {"host": facts | host, "gpus": list(cards)}


class Host:
    """A host on the other side of the agent API."""

    def __init__(
        self,
        key: str,
        cards: list[dict[str, Any]],
        *,
        client: Client | None = None,
        hostname: str = "rig",
        boot_id: str = "boot-1",
    ) -> None:
        self.key, self.cards, self.hostname, self.boot_id = key, cards, hostname, boot_id
        self.client = client or Client()
        self.fingerprint = uuid.uuid4().hex
        self.facts: dict[str, Any] = {}
        self.simulated = False
        self.secret = ""
        self.machine_id: uuid.UUID | None = None

    def call(self, path: str, body: Any = None, *, method: str = "post", bearer: str | None = None) -> Any:
        headers = {"Authorization": f"Bearer {self.secret if bearer is None else bearer}"}
        if method == "get":
            return self.client.get(ROOT + path, headers=headers)
        return self.client.post(ROOT + path, body, content_type="application/json", headers=headers)

    def enrol(self, **changes: Any) -> Any:
        body = {
            "fingerprint": self.fingerprint,
            "hostname": self.hostname,
            "agent_version": "0.1.0",
            "boot_id": self.boot_id,
            "simulated": self.simulated,
            "inventory": inventory(*self.cards, **self.facts),
        }
        answer = self.call("enrol", body | changes, bearer=self.key)
        if answer.status_code in (200, 201):
            self.secret = answer.json()["secret"]
            self.machine_id = uuid.UUID(answer.json()["machine_id"])
        return answer

    def beat(self, *workloads: dict[str, Any], **changes: Any) -> Any:
        return self.call(
            "heartbeat",
            {
                "boot_id": self.boot_id,
                "sequence": 1,
                "agent_version": "0.1.0",
                "workloads": list(workloads),
                "nvml": "ok",
            }
            | changes,
        )

    def report_inventory(self) -> Any:
        return self.call("inventory", inventory(*self.cards, **self.facts))

    def report(self, workload: Workload, state: str, **fields: Any) -> Any:
        return self.call(
            f"workloads/{workload.public_id}/report",
            {"attempt": workload.attempt, "sequence": 1, "state": state} | fields,
        )

    @property
    def machine(self) -> Machine:
        return Machine.objects.get(public_id=self.machine_id)

    @property
    def gpus(self) -> list[Gpu]:
        return list(Gpu.objects.filter(machine__public_id=self.machine_id).order_by("index"))


def connected(
    provider: Provider, *, at: datetime, count: int = 2, model: str = "rtx-4090-24gb", **options: Any
) -> Host:
    """An enrolled host that has sent its first heartbeat."""
    host = Host(api_key(provider, at=at), [card(index, model=model) for index in range(count)], **options)
    assert host.enrol().status_code == 201
    assert host.beat().status_code == 200
    return host


def result_of(
    workload: Workload, *, shares: dict[str, float] | float = 1.0, network: Any = None, disk: Any = None, **changes: Any
) -> dict[str, Any]:
    """The protocol's result of a benchmark: each card at its share of the expected values."""
    runs = list(Benchmark.objects.filter(workload=workload).select_related("gpu__variant"))
    gpus = []
    for run in runs:
        share = shares if isinstance(shares, float) else shares[run.gpu.uuid]
        expected = run.gpu.variant.expectations.get(kernel_version=run.kernel_version) if run.gpu.variant else None
        values = {name: (getattr(expected, name) if expected else 10.0) * share for name in benchmarks.MEASURES}
        gpus.append({"uuid": run.gpu.uuid, **values, "sustained_ratio": 0.98, "throttle_reasons": []})
    return {
        "attempt": workload.attempt,
        "nonce": runs[0].nonce,
        "checksum": benchmarks.checksum(runs[0].nonce, workload.gpu_uuids, runs[0].kernel_version),
        "kernel_version": runs[0].kernel_version,
        "simulated": runs[0].simulated,
        "gpus": gpus,
        "network": {"latency_ms": 12.0, "download_mbps": 940.0, "upload_mbps": 910.0} if network is None else network,
        "disk": {"read_mb_s": 3200.0, "write_mb_s": 2100.0, "random_read_iops": 200000.0} if disk is None else disk,
    } | changes


def open_benchmark(host: Host) -> Workload:
    return Workload.objects.get(machine=host.machine, kind=Workload.Kind.BENCHMARK, observed="assigned")


def measure(host: Host, *, at: datetime, **result: Any) -> Workload:
    """Ask for the benchmarks that are due at ``at``, and have the host answer the one it gets, as at that time."""
    Machine.objects.filter(public_id=host.machine_id).update(last_seen_at=at)
    assert benchmarks.request_due(at=at) >= 1
    workload = open_benchmark(host)
    answer(workload, at=at + timedelta(seconds=settings.BENCHMARK_SECONDS * len(workload.gpu_uuids) + 1), **result)
    return workload


def answer(workload: Workload, *, at: datetime, **result: Any) -> None:
    """The result of a benchmark and its end, in the shape in which the door hands them on: unknown values None."""
    fields = ResultFields(data=result_of(workload, **result))
    fields.is_valid(raise_exception=True)
    benchmarks.accept_result(workload=workload, result=fields.validated_data, at=at)
    finish(workload, at=at)


def finish(workload: Workload, *, at: datetime, cause: str = "completed") -> None:
    said = workloads.report(
        machine=workload.machine,
        workload_id=workload.public_id,
        report=workloads.Report(
            attempt=workload.attempt, state="finished", cause=cause, exit_code=0, at=at, finished_at=at
        ),
        at=at,
    )
    benchmarks.heard(workload=said, at=at)


def claims_of(reference: uuid.UUID) -> list[GpuClaim]:
    return list(GpuClaim.objects.filter(reference=reference))
