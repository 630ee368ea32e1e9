from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.driver import DriverAbsent, DriverHung, Gpu, Reading, Sample
from agent.host import HostFacts, read_facts
from agent.inventory import Inventory
from agent.outbox import Outbox
from agent.state import SAMPLES_SCHEMA, Database
from tests.agent.conftest import GPUS, SetClock


def gpu(uuid: str, index: int = 0, *, mig: bool = False) -> Gpu:
    return Gpu(
        uuid=uuid, index=index, name="NVIDIA L4", vram_mib=23034, pci_bus_id=None, compute_capability="8.9", cores=7424, memory_bus_bits=192,
        max_sm_clock_mhz=2040, max_memory_clock_mhz=6251, power_limit_w=72, pcie_generation=4, pcie_width=16, ecc_enabled=True, mig_enabled=mig,
    )  # fmt: skip


class Readings:
    """A driver that shows what the test puts in."""

    simulated = False

    def __init__(self) -> None:
        self.now: Reading | Exception = reading(GPUS[0], GPUS[1])

    def read(self) -> Reading:
        if isinstance(self.now, Exception):
            raise self.now
        return self.now

    def close(self) -> None:
        """Nothing is held."""


def reading(*uuids: str, driver: str = "580", xids: list[dict[str, object]] | None = None, used: int = 1) -> Reading:
    return Reading(
        driver_version=driver,
        cuda_version="13.0",
        gpus=[gpu(uuid, index) for index, uuid in enumerate(uuids)],
        samples=[Sample(gpu_uuid=uuid, memory_used_mib=used) for uuid in uuids],
        xids=xids or [],
    )


class Host:
    def __init__(self, folder: Path) -> None:
        self.database = Database(folder / "a.sqlite3")
        self.outbox = Outbox(self.database, Database(folder / "s.sqlite3", schema=SAMPLES_SCHEMA, durable=False))
        self.driver = Readings()
        self.folder = folder

    def inventory(self, boot_id: str = "boot-1", given: frozenset[str] | None = None) -> Inventory:
        def facts(driver: str | None, cuda: str | None) -> HostFacts:
            return read_facts(hostname="h", disk_of=self.folder, versions={}, driver_version=driver, cuda_version=cuda)

        return Inventory(
            database=self.database,
            outbox=self.outbox,
            driver=self.driver,
            clock=SetClock(),
            boot_id=boot_id,
            given=given,
            host_facts=facts,
        )

    def kinds(self) -> list[str]:
        return [event["kind"] for event in self.outbox.take_events()]


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def health(inventory: Inventory) -> dict[str, str]:
    return {entry["uuid"]: entry["health"] for entry in inventory.as_json()["gpus"]}


@pytest.mark.spec("B2")
@pytest.mark.case("agent-12")
def test_a_card_that_vanishes_is_told_stays_listed_and_may_run_nothing(host: Host) -> None:
    inventory = host.inventory()
    inventory.look()
    host.driver.now = reading(GPUS[1])
    inventory.look()
    inventory.look()
    assert host.kinds() == ["gpu_lost"]
    assert health(inventory) == {GPUS[0]: "fatal", GPUS[1]: "ok"}
    assert inventory.problem(GPUS[0])
    assert inventory.lost(GPUS[0])
    assert inventory.problem(GPUS[1]) is None


@pytest.mark.case("agent-14")
def test_only_a_new_boot_or_driver_makes_a_card_well_again_not_a_restart_of_the_agent(host: Host) -> None:
    inventory = host.inventory()
    inventory.look()
    host.driver.now = reading(
        GPUS[0], GPUS[1], xids=[{"gpu_uuid": GPUS[0], "xid": 79}, {"gpu_uuid": GPUS[1], "xid": 31}]
    )
    inventory.look()
    host.driver.now = reading(GPUS[0], GPUS[1])
    again = host.inventory()
    again.look()
    assert health(again) == {GPUS[0]: "fatal", GPUS[1]: "ok"}
    rebooted = host.inventory(boot_id="boot-2")
    rebooted.look()
    assert health(rebooted) == {GPUS[0]: "ok", GPUS[1]: "ok"}
    assert host.kinds() == ["xid", "xid"]


def test_a_driver_update_is_told_and_heals(host: Host) -> None:
    inventory = host.inventory()
    host.driver.now = reading(GPUS[0], xids=[{"gpu_uuid": GPUS[0], "xid": 48}])
    inventory.look()
    assert health(inventory)[GPUS[0]] == "degraded"
    host.driver.now = reading(GPUS[0], driver="590")
    inventory.look()
    assert health(inventory)[GPUS[0]] == "ok"
    assert host.kinds() == ["xid", "driver_changed"]


@pytest.mark.case("agent-18")
@pytest.mark.parametrize(("failure", "state"), [(DriverHung("x"), "hung"), (DriverAbsent("x"), "absent")])
def test_while_the_driver_is_silent_the_last_good_picture_stays(host: Host, failure: Exception, state: str) -> None:
    inventory = host.inventory()
    inventory.look()
    host.driver.now = failure
    assert inventory.look() is None
    assert inventory.nvml == state
    assert health(inventory) == {GPUS[0]: "ok", GPUS[1]: "ok"}
    assert host.kinds() == []


def test_a_card_that_comes_back_is_told(host: Host) -> None:
    inventory = host.inventory()
    inventory.look()
    host.driver.now = reading(GPUS[0])
    inventory.look()
    host.driver.now = reading(GPUS[0], GPUS[1])
    inventory.look()
    assert host.kinds() == ["gpu_lost", "gpu_back"]
    assert health(inventory)[GPUS[1]] == "fatal"


@pytest.mark.spec("B6")
def test_a_card_not_given_or_cut_up_by_mig_runs_nothing(host: Host) -> None:
    host.driver.now = Reading(driver_version="580", cuda_version="13.0", gpus=[gpu(GPUS[0]), gpu(GPUS[1], 1, mig=True)])
    inventory = host.inventory(given=frozenset({GPUS[1]}))
    inventory.look()
    assert "not given" in (inventory.problem(GPUS[0]) or "")
    assert "MIG" in (inventory.problem(GPUS[1]) or "")
    assert "no such GPU" in (inventory.problem("GPU-x") or "")


def test_a_card_that_holds_memory_is_in_use(host: Host) -> None:
    inventory = host.inventory()
    inventory.look()
    assert not inventory.in_use(GPUS[0])
    host.driver.now = reading(GPUS[0], used=501)
    inventory.look()
    assert inventory.in_use(GPUS[0])
    host.driver.now = reading(GPUS[0], used=1)
    assert not inventory.in_use(GPUS[0])


def counted(uuid: str, **counters: Any) -> Reading:
    return replace(reading(uuid), samples=[Sample(gpu_uuid=uuid, **counters)])


@pytest.mark.case("agent-13", "agent-14")
def test_counters_of_the_memory_are_events_when_they_grow_and_only_then(host: Host) -> None:
    inventory = host.inventory()
    for value in (0, 2, 2, 0, 5_000_000, 0):
        host.driver.now = counted(GPUS[0], ecc_uncorrected=value)
        inventory.look()
    assert [(event["kind"], event["data"]) for event in host.outbox.take_events()] == [
        ("ecc", {"counter": "uncorrected", "before": 0, "after": 2})
    ]
    assert health(inventory) == {GPUS[0]: "degraded"}


def test_a_row_that_could_not_be_remapped_is_fatal_again_after_each_restart(host: Host) -> None:
    for boot in ("boot-1", "boot-2"):
        inventory = host.inventory(boot)
        host.driver.now = counted(GPUS[0], row_remap_failed=1, row_remap_pending=0)
        inventory.look()
        inventory.look()
        assert health(inventory) == {GPUS[0]: "fatal"}
    assert host.kinds() == ["ecc", "ecc"]


def test_pages_that_wait_degrade_until_the_restart_that_retires_them(host: Host) -> None:
    inventory = host.inventory()
    host.driver.now = counted(GPUS[0], pages_pending=1)
    inventory.look()
    assert health(inventory) == {GPUS[0]: "degraded"}
    host.driver.now = counted(GPUS[0], pages_pending=0)
    after = host.inventory("boot-2")
    after.look()
    assert health(after) == {GPUS[0]: "ok"}
