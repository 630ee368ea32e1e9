"""Readings through the unmodified nvidia-ml-py, on a stub of the library under it that a file steers."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.driver import DriverAbsent, DriverHung, Gpu, Reading, Sample, xid_health
from agent.watch import WatchedDriver
from tests.requirements import require

HERE = Path(__file__).parent
L4 = {
    "uuid": "GPU-0a000000-0000-0000-0000-000000000000", "name": "NVIDIA L4", "total": 24152899584, "used": 1048576, "reserved": 659554304,
    "pci": "00000000:17:00.0", "capability": 89, "cores": 7424, "bus": 192, "sm_clock": 2040, "memory_clock": 6251, "max_sm_clock": 2040,
    "max_memory_clock": 6251, "power": 36123, "power_limit": 72000, "pcie_generation": 4, "pcie_width": 16, "ecc": 1, "temperature": 41,
    "utilization": 7, "reasons": 0x24, "ecc_errors": 0,
}  # fmt: skip


class Library:
    """The stub and what it says."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.values: dict[str, object] = {"driver": "580.95.05", "cuda": 13000, "count": 2}
        for position in (0, 1):
            self.card(position, **{**L4, "uuid": f"GPU-0{position}000000-0000-0000-0000-000000000000"})

    def card(self, position: int, **values: object) -> None:
        self.say(**{f"{position}.{key}": value for key, value in values.items()})

    def say(self, **values: object) -> None:
        self.values |= values
        draft = self.state.with_suffix(".new")
        draft.write_text("".join(f"{key}={value}\n" for key, value in self.values.items()))
        draft.rename(self.state)


@pytest.fixture(scope="session")
def stub_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = require("gcc", "NVML on a stub of libnvidia-ml.so.1")
    folder = tmp_path_factory.mktemp("nvml")
    source, library = HERE / "libnvidia_ml_stub.c", folder / "libnvidia-ml.so.1"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", library, source], check=True)
    return folder


@pytest.fixture
def library(stub_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Library:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(stub_folder))
    monkeypatch.setenv("NVML_STUB_STATE", str(tmp_path / "state"))
    return Library(tmp_path / "state")


@pytest.fixture
def driver() -> Iterator[WatchedDriver]:
    driver = WatchedDriver(answer_s=5, retry_s=0)
    yield driver
    driver.close()


@pytest.mark.spec("B2")
def test_a_card_is_read_whole(library: Library, driver: WatchedDriver) -> None:
    reading = driver.read()
    assert (reading.driver_version, reading.cuda_version) == ("580.95.05", "13.0")
    assert reading.gpus[0] == Gpu(
        uuid="GPU-00000000-0000-0000-0000-000000000000", index=0, name="NVIDIA L4", vram_mib=23034, pci_bus_id="00000000:17:00.0",
        compute_capability="8.9", cores=7424, memory_bus_bits=192, max_sm_clock_mhz=2040, max_memory_clock_mhz=6251, power_limit_w=72,
        pcie_generation=4, pcie_width=16, ecc_enabled=True, mig_enabled=None,
    )  # fmt: skip
    assert reading.samples[0] == Sample(
        gpu_uuid="GPU-00000000-0000-0000-0000-000000000000", temperature_c=41, power_w=36.1, utilization_pct=7, memory_used_mib=1,
        memory_total_mib=23034, sm_clock_mhz=2040, memory_clock_mhz=6251, fan_pct=None, throttle_reasons=["sw_power_cap", "sw_thermal_slowdown"],
        ecc_uncorrected=0,
    )  # fmt: skip


@pytest.mark.case("agent-7")
def test_the_drivers_reserve_is_not_use_where_the_driver_can_tell(library: Library, driver: WatchedDriver) -> None:
    assert driver.read().samples[0].memory_used_mib == 1
    library.say(no_memory_v2=1)
    assert driver.read().samples[0].memory_used_mib == 630


@pytest.mark.case("agent-5", "agent-9", "agent-6")
def test_what_a_card_does_not_report_is_none_and_the_rest_is_read(library: Library, driver: WatchedDriver) -> None:
    library.card(0, power="!3", utilization="!3", total="!3", reasons="!3", fan="!999", mig=1)
    reading = driver.read()
    sample = reading.samples[0]
    assert (sample.power_w, sample.utilization_pct, sample.memory_used_mib, sample.throttle_reasons) == (
        None,
        None,
        None,
        None,
    )
    assert sample.temperature_c == 41
    assert reading.gpus[0].vram_mib is None
    assert reading.gpus[0].mig_enabled is True


@pytest.mark.case("agent-13")
def test_a_lost_card_hides_no_other(library: Library, driver: WatchedDriver) -> None:
    driver.read()
    library.card(0, lost=1)
    reading = driver.read()
    assert [gpu.uuid[:6] for gpu in reading.gpus] == ["GPU-01"]
    assert reading.lost == ["0"]


@pytest.mark.case("agent-16")
def test_an_updated_driver_under_the_old_one_asks_for_a_reboot(library: Library, driver: WatchedDriver) -> None:
    library.say(init=18)
    with pytest.raises(DriverAbsent, match="reboot"):
        driver.read()
    library.say(init=0)
    assert driver.read().gpus


@pytest.mark.case("agent-15")
def test_a_driver_that_hangs_is_given_up_in_time_and_tried_again(library: Library, tmp_path: Path) -> None:
    driver = WatchedDriver(answer_s=1.5, retry_s=0)
    library.say(hang=1)
    with pytest.raises(DriverHung):
        driver.read()
    library.say(hang=0)
    assert len(driver.read().gpus) == 2
    driver.close()


def test_after_a_hang_the_driver_is_left_alone_for_a_while(library: Library) -> None:
    driver = WatchedDriver(answer_s=0.2, retry_s=60)
    library.say(hang=1)
    with pytest.raises(DriverHung, match="did not answer"):
        driver.read()
    with pytest.raises(DriverHung, match="tried again"):
        driver.read()
    driver.close()


def test_without_the_library_it_says_what_to_do(driver: WatchedDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("nvidia-smi"):
        pytest.skip("this machine has an NVIDIA driver")
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    with pytest.raises(DriverAbsent, match="install the NVIDIA driver"):
        driver.read()


@pytest.mark.case("agent-14")
def test_an_xid_arrives_once_with_its_card(library: Library, driver: WatchedDriver) -> None:
    driver.read()
    library.say(xid="1,79,1")
    seen = [xid for _ in range(60) for xid in (driver.read().xids or wait())]
    assert seen == [{"gpu_uuid": "GPU-01000000-0000-0000-0000-000000000000", "xid": 79}]


def wait() -> list[dict[str, object]]:
    subprocess.run(["sleep", "0.03"], check=True)
    return []


@pytest.mark.case("agent-14")
@pytest.mark.parametrize(
    ("xid", "health"),
    [(13, None), (31, None), (43, None), (48, "degraded"), (63, "degraded"), (79, "fatal"), (999, "degraded")],
)
def test_xids_are_sorted_by_whose_fault_they_are(xid: int, health: str | None) -> None:
    assert xid_health(xid) == health


def test_a_reading_survives_the_way_between_the_processes(library: Library, driver: WatchedDriver) -> None:
    reading = driver.read()
    assert Reading.from_json(reading.as_json()) == reading
