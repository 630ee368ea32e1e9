"""The benchmark: its kernels through ptxas for every architecture, and its arithmetic on a stub of the driver API."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from agent import disk, measure
from agent.benchmark import read_figures
from agent.cuda import KERNELS, Cuda, CudaError
from agent.driver import Sample
from agent.measure import Card, Wrong
from agent.results import checksum
from agent.work import BenchmarkFailed
from tests.requirements import require

HERE = Path(__file__).parent
FIRST = "GPU-00000000-0000-0000-0000-000000000000"
ARCHITECTURES = [75, 80, 86, 89, 90, 100, 120]


def ptxas() -> str:
    found = shutil.which("ptxas") or shutil.which("/usr/local/cuda/bin/ptxas")
    if found is None:
        pytest.skip("no ptxas (CUDA toolkit) to compile the kernels with")
    return found


@pytest.mark.spec("C2")
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("kernel", sorted(path.stem for path in KERNELS.glob("*.ptx")))
def test_every_kernel_compiles_for_every_card(kernel: str, architecture: int, tmp_path: Path) -> None:
    if kernel == "mma_sm80" and architecture < 80:
        refused = subprocess.run(
            [ptxas(), f"-arch=sm_{architecture}", KERNELS / f"{kernel}.ptx", "-o", tmp_path / "out"],
            capture_output=True,
            check=False,
        )
        assert refused.returncode != 0
        return
    done = subprocess.run(
        [ptxas(), "-v", f"-arch=sm_{architecture}", KERNELS / f"{kernel}.ptx", "-o", tmp_path / "out"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    registers = [int(count) for count in re.findall(r"Used (\d+) registers", done.stderr)]
    least = {"fma32": 12, "fma16": 10, "mma_sm80": 36, "mma_sm75": 34, "memory": 16}[
        kernel
    ]  # fewer: a loop was folded away
    assert min(registers) >= least


def test_the_work_that_is_counted_is_the_work_that_is_written() -> None:
    def count(file: str, pattern: str) -> int:
        text = (KERNELS / f"{file}.ptx").read_text()
        loop = text[text.index("again:") : text.index("bra again")]
        return len(re.findall(pattern, loop))

    assert count("fma32", r"fma\.rn\.f32 ") * 2 == 128
    assert count("fma16", r"fma\.rn\.f16x2 ") * 4 == 256
    assert count("mma_sm80", r"mma\.sync\S*m16n8k16") == 32
    assert count("mma_sm75", r"mma\.sync\S*m16n8k8") == 32
    assert count("memory", r"ld\.global\.v4\.u32") * 16 == 64


@pytest.fixture(scope="session")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = require("gcc", "measuring on a stub of libcuda.so.1")
    library = tmp_path_factory.mktemp("cuda") / "libcuda.so.1"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-O2", "-Wall", "-Werror", "-o", library, HERE / "libcuda_stub.c", "-lm"],
        check=True,
    )
    return library


@pytest.fixture
def card(stub: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Measures the stub's card with the settings given."""
    monkeypatch.setattr(measure, "WARM_UP_S", 0.01)

    def measured(settings: str = "", *, seconds: float = 0.3, sample: Sample | None = None) -> dict[str, Any]:
        monkeypatch.setenv("CUDA_STUB", settings)
        with Cuda(str(stub)).device_by_uuid(FIRST) as device:
            return Card(device).measure(seconds=seconds, sample=lambda: sample)

    return measured


@pytest.mark.spec("C2")
def test_the_rates_of_a_card_come_out_as_they_are(card: Any) -> None:
    figures = card("fp32=30.3e12 fp16=31e12 tensor=121e12 memory=280e9")
    assert figures["fp32_tflops"] == pytest.approx(30.3, rel=0.01)
    assert figures["fp16_tflops"] == pytest.approx(31, rel=0.01)
    assert figures["tensor_tflops"] == pytest.approx(121, rel=0.01)
    for name in ("vram_read_gbps", "vram_write_gbps", "vram_copy_gbps"):
        assert figures[name] == pytest.approx(280, rel=0.01)
    assert figures["sustained_ratio"] == pytest.approx(1, abs=0.02)
    assert figures["temperature_c"] is None


def test_a_turing_card_is_counted_by_its_own_instruction(card: Any) -> None:
    assert card("major=7 minor=5 tensor=65e12")["tensor_tflops"] == pytest.approx(65, rel=0.01)


@pytest.mark.spec("I1")
def test_a_card_that_sags_under_load_shows_it(card: Any) -> None:
    sample = Sample(
        gpu_uuid=FIRST,
        temperature_c=91,
        power_w=70.1,
        sm_clock_mhz=900,
        memory_clock_mhz=6251,
        throttle_reasons=["hw_thermal_slowdown"],
    )
    figures = card("tensor=121e12 sag=0.8", seconds=0.6, sample=sample)
    assert figures["sustained_ratio"] == pytest.approx(0.8, abs=0.05)
    assert (figures["temperature_c"], figures["throttle_reasons"]) == (91, ["hw_thermal_slowdown"])


@pytest.mark.parametrize("kernel", ["fma32", "fma16", "mma", "vread"])
def test_a_card_that_computes_wrongly_gets_no_figures(card: Any, kernel: str) -> None:
    with pytest.raises(Wrong):
        card(f"wrong={kernel}")


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("cuInit:100", "cuInit"),
        ("cuMemAlloc_v2:2", "cuMemAlloc_v2"),
        ("cuMemcpyDtoH_v2:214", "ECC_UNCORRECTABLE"),
        ("cuEventSynchronize:702", "LAUNCH_TIMEOUT"),
        ("cuModuleLoadDataEx:222", "cuModuleLoadDataEx"),
    ],
)
def test_a_driver_call_that_fails_is_named(card: Any, fault: str, words: str) -> None:
    with pytest.raises(CudaError, match=words):
        card(f"fail={fault}")


def test_a_card_cuda_does_not_see_is_named(stub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_STUB", "")
    with pytest.raises(CudaError, match="GPU-f"):
        Cuda(str(stub)).device_by_uuid("GPU-f")


def test_figures_are_read_from_a_log_that_says_other_things_too() -> None:
    lines = [
        "==========",
        "CUDA Version 13.0",
        '{"uuid": "GPU-b", "fp32_tflops": 2}',
        "7",
        '{"uuid": "GPU-a", "fp32_tflops": 1}',
    ]
    assert [figures["uuid"] for figures in read_figures(lines, ["GPU-a", "GPU-b"])] == ["GPU-a", "GPU-b"]
    with pytest.raises(BenchmarkFailed, match="GPU-c"):
        read_figures(lines, ["GPU-c"])
    with pytest.raises(BenchmarkFailed, match="no driver"):
        read_figures(['{"error": "no driver"}'], ["GPU-a"])


def test_the_checksum_binds_nonce_cards_and_kernels() -> None:
    first = checksum("nonce", ["GPU-a", "GPU-b"])
    assert first == checksum("nonce", ["GPU-b", "GPU-a"])
    assert re.fullmatch(r"[0-9a-f]{64}", first)
    assert (
        len(
            {
                first,
                checksum("other", ["GPU-a", "GPU-b"]),
                checksum("nonce", ["GPU-a"]),
                checksum("nonce", ["GPU-a", "GPU-b"], "2"),
            }
        )
        == 4
    )


def test_the_disk_is_measured_and_left_as_it_was(tmp_path: Path) -> None:
    found = disk.measure(tmp_path, cancelled=lambda: False, size=64 << 20)
    assert list(tmp_path.iterdir()) == []
    if found["read_mb_s"] is None:
        pytest.skip("this filesystem has no O_DIRECT")
    assert all(value is not None and value > 0 for value in found.values())
