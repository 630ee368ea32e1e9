"""The catalogue that the platform opens with."""

import pytest

from providers.models import GpuModel, GpuVariant

pytestmark = pytest.mark.django_db


@pytest.mark.spec("A4")
def test_it_opens_with_the_models_of_the_specification():
    assert set(GpuModel.objects.values_list("name", flat=True)) == {
        "H100 80GB",
        "A100 40GB",
        "A100 80GB",
        "L40S 48GB",
        "L4 24GB",
        "RTX 4090 24GB",
        "RTX A6000 48GB",
    }


@pytest.mark.parametrize(
    ("nvml_name", "vram_mib", "model"),
    [
        ("NVIDIA H100 80GB HBM3", 81559, "H100 80GB"),
        ("NVIDIA H100 PCIe", 81559, "H100 80GB"),
        ("NVIDIA H100 NVL", 95830, "H100 80GB"),
        ("NVIDIA A100-SXM4-40GB", 40960, "A100 40GB"),
        ("NVIDIA A100-PCIE-40GB", 40960, "A100 40GB"),
        ("NVIDIA A100-SXM4-80GB", 81920, "A100 80GB"),
        ("NVIDIA A100 80GB PCIe", 81920, "A100 80GB"),
        ("NVIDIA L40S", 46068, "L40S 48GB"),
        ("NVIDIA L4", 23034, "L4 24GB"),
        ("NVIDIA GeForce RTX 4090", 24564, "RTX 4090 24GB"),
        ("NVIDIA RTX A6000", 49140, "RTX A6000 48GB"),
    ],
)
def test_a_detected_card_is_one_variant(nvml_name, vram_mib, model):
    variant = GpuVariant.objects.get(
        nvml_names__contains=[nvml_name], vram_mib_least__lte=vram_mib, vram_mib_most__gte=vram_mib
    )
    assert variant.model.name == model


@pytest.mark.spec("C2")
@pytest.mark.parametrize(
    ("variant", "fp16", "fp32", "tensor", "read"),
    [
        ("H100 SXM5 80GB", 133.8, 67.0, 593.6, 3082.0),
        ("H100 PCIe 80GB", 102.0, 51.0, 453.6, 1840.0),
        ("A100 SXM4 80GB", 78.0, 19.5, 312.0, 1875.9),
        ("RTX 4090 24GB", 82.6, 82.6, 165.2, 927.4),
    ],
)
def test_each_variant_has_what_it_should_measure_with_these_kernels(variant, fp16, fp32, tensor, read):
    expected = GpuVariant.objects.get(name=variant).expectations.get(kernel_version="1")
    assert (expected.fp16_tflops, expected.fp32_tflops, expected.tensor_tflops, expected.vram_read_gbps) == (
        fp16,
        fp32,
        tensor,
        read,
    )
    assert expected.vram_write_gbps == read


def test_every_variant_has_expected_values():
    assert not GpuVariant.objects.filter(expectations=None).exists()
