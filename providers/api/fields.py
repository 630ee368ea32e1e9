"""What agents send, read with bounds: a host is nobody's friend. Unknown fields are left out, so newer agents work too."""

import json
from typing import Any

from rest_framework import serializers

from providers.inventory import card_uuid
from providers.models import Gpu, Workload
from providers.workloads import REPORTED_CAUSES

MOST_GPUS = 64
MOST_EVENTS = 200
MOST_SAMPLES = 500
MOST_LOG_CHARACTERS = 256 * 1024
_BIG = 2**53


class Reading(serializers.FloatField):
    """A finite number of JSON, or null: texts, NaN and infinities are refused, unknown stays None."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"allow_null": True, "default": None, "min_value": 0, "max_value": _BIG} | options)

    def to_internal_value(self, data: Any) -> float:
        # An integer of JSON may have thousands of digits: compared before anything makes a float of it.
        if isinstance(data, bool) or not isinstance(data, int | float) or not -_BIG <= data <= _BIG:
            self.fail("invalid")
        return super().to_internal_value(data)


class Whole(serializers.IntegerField):
    """A whole number of JSON, or null."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"allow_null": True, "default": None, "min_value": 0, "max_value": 2**31 - 1} | options)

    def to_internal_value(self, data: Any) -> int:
        # "1e999" is an infinity of JSON's grammar, and no number is nothing that can be compared.
        if (
            isinstance(data, bool)
            or not isinstance(data, int | float)
            or not -_BIG <= data <= _BIG
            or data != int(data)
        ):
            self.fail("invalid")
        return super().to_internal_value(int(data))


class Word(serializers.CharField):
    """A short text, or null."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"allow_null": True, "allow_blank": True, "default": None, "max_length": 120} | options)


class CardUuid(serializers.RegexField):
    """A card's UUID as NVML names it, kept in one case."""

    def __init__(self, **options: Any) -> None:
        super().__init__(r"^GPU-[0-9A-Za-z-]{4,72}\Z", max_length=80, **options)

    def to_internal_value(self, data: Any) -> str:
        return card_uuid(super().to_internal_value(data))


class AnyCardUuid(Word):
    """What names a card, or null; one that names none is let through, and found nowhere."""

    def __init__(self, **options: Any) -> None:
        super().__init__(max_length=80, **options)

    def to_internal_value(self, data: Any) -> str:
        return card_uuid(super().to_internal_value(data))


def _needed(**options: Any) -> dict[str, Any]:
    """Options of a field that must be there."""
    return {"allow_null": False, "default": serializers.empty, "required": True} | options


class HostFields(serializers.Serializer):
    hostname = Word(max_length=253)
    os = Word()
    kernel = Word()
    arch = Word()
    cpu_model = Word()
    cpu_cores = Whole()
    memory_mib = Whole()
    disk_total_gib = Reading()
    disk_free_gib = Reading()
    docker_version = Word(max_length=40)
    runc_version = Word(max_length=40)
    toolkit_version = Word(max_length=40)
    driver_version = Word(max_length=24)
    cuda_version = Word(max_length=12)
    boot_id = Word(max_length=64)


class GpuFields(serializers.Serializer):
    uuid = CardUuid()
    index = Whole(**_needed(max_value=1000))
    name = Word(**_needed(max_length=96, allow_blank=False))
    vram_mib = Whole()
    pci_bus_id = Word(max_length=40)
    compute_capability = Word(max_length=12)
    cores = Whole()
    memory_bus_bits = Whole()
    max_sm_clock_mhz = Whole()
    max_memory_clock_mhz = Whole()
    power_limit_w = Reading()
    pcie_generation = Whole()
    pcie_width = Whole()
    ecc_enabled = serializers.BooleanField(allow_null=True, default=None)
    mig_enabled = serializers.BooleanField(allow_null=True, default=None)
    health = serializers.ChoiceField(Gpu.Health.choices, default=Gpu.Health.OK)
    given = serializers.BooleanField(default=True)


class InventoryFields(serializers.Serializer):
    host = HostFields()
    gpus: serializers.ListSerializer = serializers.ListSerializer(child=GpuFields(), max_length=MOST_GPUS)

    def validate_gpus(self, gpus: list[dict[str, Any]]) -> list[dict[str, Any]]:
        if len({gpu["uuid"] for gpu in gpus}) < len(gpus):
            raise serializers.ValidationError("The same UUID is listed twice.")
        return gpus


class EnrolFields(serializers.Serializer):
    fingerprint = serializers.CharField(max_length=80, min_length=8)
    hostname = serializers.CharField(max_length=253)
    agent_version = serializers.CharField(max_length=20)
    boot_id = serializers.CharField(max_length=64)
    simulated = serializers.BooleanField(default=False)
    inventory = InventoryFields()
    machine_id = serializers.UUIDField(allow_null=True, default=None)


class RunningFields(serializers.Serializer):
    id = serializers.UUIDField()
    attempt = serializers.IntegerField(min_value=0, max_value=32767)
    state = serializers.CharField(max_length=20)
    container_started_at = serializers.DateTimeField(allow_null=True, default=None)


class GapFields(serializers.Serializer):
    """What the host's own journal says of a time in which it reached nobody: ``from``, ``to``, and whether the agent ran."""

    to = serializers.DateTimeField()
    boot_id = serializers.CharField(max_length=64)
    ran = serializers.BooleanField()

    def get_fields(self) -> dict[str, serializers.Field]:
        return {"from": serializers.DateTimeField(), **super().get_fields()}  # a word of Python's own

    def validate(self, gap: dict[str, Any]) -> dict[str, Any]:
        if gap["to"] < gap["from"]:
            raise serializers.ValidationError({"to": "A gap ends after it begins."})
        return gap


class HeartbeatFields(serializers.Serializer):
    boot_id = serializers.CharField(max_length=64)
    sequence = serializers.IntegerField(min_value=0, max_value=_BIG, default=0)
    agent_version = serializers.CharField(max_length=20, allow_blank=True, default="")
    sent_at = serializers.DateTimeField(allow_null=True, default=None)
    workloads: serializers.ListSerializer = serializers.ListSerializer(
        child=RunningFields(), max_length=1000, default=list
    )
    nvml = serializers.ChoiceField(["ok", "hung", "absent"], default="ok")
    gap = GapFields(allow_null=True, default=None)


class ReportFields(serializers.Serializer):
    attempt = serializers.IntegerField(min_value=0, max_value=32767)
    sequence = serializers.IntegerField(min_value=0, max_value=_BIG, default=0)
    state = serializers.ChoiceField(
        [state for state in Workload.Observed.values if state != Workload.Observed.ASSIGNED]
    )
    at = serializers.DateTimeField(allow_null=True, default=None)
    container_started_at = serializers.DateTimeField(allow_null=True, default=None)
    finished_at = serializers.DateTimeField(allow_null=True, default=None)
    exit_code = Whole(min_value=-(2**31))
    cause = serializers.ChoiceField(sorted(REPORTED_CAUSES), allow_null=True, allow_blank=True, default="")
    message = serializers.CharField(allow_null=True, allow_blank=True, max_length=4000, default="")
    progress = Reading(max_value=1)

    def validate(self, report: dict[str, Any]) -> dict[str, Any]:
        if report["state"] == Workload.Observed.FINISHED and not report["cause"]:
            raise serializers.ValidationError({"cause": "A finished workload has a cause."})
        return report | {"cause": report["cause"] or "", "message": (report["message"] or "").replace("\x00", "")}


class LogFields(serializers.Serializer):
    attempt = serializers.IntegerField(min_value=0, max_value=32767)
    offset = serializers.IntegerField(min_value=0, max_value=_BIG)
    text = serializers.CharField(allow_blank=True, trim_whitespace=False, max_length=MOST_LOG_CHARACTERS)

    def to_internal_value(self, data: Any) -> Any:
        # CharField refuses NUL, which programs do print; it is kept as "?", one byte for one byte.
        if isinstance(data, dict) and isinstance(data.get("text"), str):
            data = {**data, "text": data["text"].replace("\x00", "?")}
        return super().to_internal_value(data)


class MeasuredGpuFields(serializers.Serializer):
    uuid = AnyCardUuid(**_needed())
    fp16_tflops = Reading()
    fp32_tflops = Reading()
    tensor_tflops = Reading()
    vram_read_gbps = Reading()
    vram_write_gbps = Reading()
    vram_copy_gbps = Reading()
    sm_clock_mhz = Reading()
    memory_clock_mhz = Reading()
    temperature_c = Reading(min_value=-100)
    power_w = Reading()
    throttle_reasons = serializers.ListField(
        child=serializers.CharField(max_length=60), max_length=32, allow_null=True, default=list
    )
    sustained_ratio = Reading(max_value=2)


class NetworkFields(serializers.Serializer):
    latency_ms = Reading()
    download_mbps = Reading()
    upload_mbps = Reading()


class DiskFields(serializers.Serializer):
    read_mb_s = Reading()
    write_mb_s = Reading()
    random_read_iops = Reading()


class ResultFields(serializers.Serializer):
    attempt = serializers.IntegerField(min_value=0, max_value=32767)
    nonce = serializers.CharField(max_length=64)
    checksum = serializers.CharField(max_length=64)
    kernel_version = serializers.CharField(max_length=20)
    simulated = serializers.BooleanField()
    gpus: serializers.ListSerializer = serializers.ListSerializer(child=MeasuredGpuFields(), max_length=MOST_GPUS)
    network = NetworkFields()
    disk = DiskFields()


class SampleFields(serializers.Serializer):
    gpu_uuid = AnyCardUuid()
    at = serializers.DateTimeField()
    temperature_c = Reading(min_value=-100)
    power_w = Reading()
    utilization_pct = Reading(max_value=100)
    memory_used_mib = Whole()
    memory_total_mib = Whole()
    sm_clock_mhz = Whole()
    memory_clock_mhz = Whole()
    fan_pct = Reading(max_value=400)
    throttle_reasons = serializers.ListField(
        child=serializers.CharField(max_length=60), max_length=32, allow_null=True, default=list
    )


class TelemetryFields(serializers.Serializer):
    samples: serializers.ListSerializer = serializers.ListSerializer(child=SampleFields(), max_length=MOST_SAMPLES)
    # What the clock that the samples' times are of says when they are sent.
    sent_at = serializers.DateTimeField(allow_null=True, default=None)


class EventFields(serializers.Serializer):
    id = serializers.UUIDField()
    sequence = serializers.IntegerField(min_value=0, max_value=_BIG)
    at = serializers.DateTimeField()
    kind = serializers.ChoiceField(
        ["xid", "ecc", "thermal", "gpu_lost", "gpu_back", "driver_changed", "docker_down", "docker_up", "boot"]
    )
    gpu_uuid = AnyCardUuid()
    data = serializers.DictField(allow_empty=True, default=dict)  # type: ignore[assignment]  # the contract's name for it

    def validate_data(self, data: dict[str, Any]) -> dict[str, Any]:
        try:
            text = json.dumps(data, allow_nan=False, ensure_ascii=False)
            text.encode()
        except (ValueError, RecursionError):
            raise serializers.ValidationError("Numbers and whole texts only.") from None
        if "\\u0000" in text:  # PostgreSQL stores none
            raise serializers.ValidationError("Texts without NUL only.")
        if len(text) > 4000:
            raise serializers.ValidationError("Too long.")
        return data


class EventsFields(serializers.Serializer):
    events: serializers.ListSerializer = serializers.ListSerializer(child=EventFields(), max_length=MOST_EVENTS)
    sent_at = serializers.DateTimeField(allow_null=True, default=None)  # as that of telemetry
