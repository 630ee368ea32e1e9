"""The catalogue that the platform opens with, and what its cards should measure with version "1" of the kernels.

Vendor figures are dense ones: FP32 at the datasheet, FP16 outside the tensor cores (A100 four times FP32, H100 twice,
Ada and GA102 the same as FP32), tensor cores FP16 with FP32 accumulation, memory at 0.92 of the bus. ``mma.sync``, which
the kernels use, reaches about 0.60 of Hopper's tensor peak, since the rest needs ``wgmma``; judged by the datasheet every
H100 would fail. Admins calibrate the rows once real cards have run.
"""

from django.db import migrations

KERNEL_VERSION = "1"
MMA_SHARE_ON_HOPPER = 0.60
MEMORY_SHARE = 0.92

# slug, name, VRAM GiB, class
MODELS = [
    ("h100-80gb", "H100 80GB", 80, "datacenter"),
    ("a100-80gb", "A100 80GB", 80, "datacenter"),
    ("a100-40gb", "A100 40GB", 40, "datacenter"),
    ("l40s-48gb", "L40S 48GB", 48, "datacenter"),
    ("l4-24gb", "L4 24GB", 24, "datacenter"),
    ("rtx-a6000-48gb", "RTX A6000 48GB", 48, "workstation"),
    ("rtx-4090-24gb", "RTX 4090 24GB", 24, "consumer"),
]

# model, name, NVML names, VRAM MiB from and to (with and without ECC, older drivers keep more for themselves),
# CUDA cores, bus bits, board W, then FP16, FP32, tensor TFLOPS and memory GB/s by the vendor
VARIANTS = [
    ("h100-80gb", "H100 SXM5 80GB", ["NVIDIA H100 80GB HBM3"], 79_000, 82_000, 16_896, 5120, 700, 133.8, 67.0, 989.4, 3350),
    ("h100-80gb", "H100 PCIe 80GB", ["NVIDIA H100 PCIe"], 79_000, 82_000, 14_592, 5120, 350, 102.0, 51.0, 756.0, 2000),
    ("h100-80gb", "H100 NVL 94GB", ["NVIDIA H100 NVL"], 93_000, 97_000, 16_896, 6016, 400, 120.0, 60.0, 835.0, 3900),
    ("a100-80gb", "A100 SXM4 80GB", ["NVIDIA A100-SXM4-80GB"], 79_000, 82_000, 6912, 5120, 400, 78.0, 19.5, 312.0, 2039),
    ("a100-80gb", "A100 PCIe 80GB", ["NVIDIA A100 80GB PCIe"], 79_000, 82_000, 6912, 5120, 300, 78.0, 19.5, 312.0, 1935),
    ("a100-40gb", "A100 SXM4 40GB", ["NVIDIA A100-SXM4-40GB"], 39_000, 41_000, 6912, 5120, 400, 78.0, 19.5, 312.0, 1555),
    ("a100-40gb", "A100 PCIe 40GB", ["NVIDIA A100-PCIE-40GB"], 39_000, 41_000, 6912, 5120, 250, 78.0, 19.5, 312.0, 1555),
    ("l40s-48gb", "L40S 48GB", ["NVIDIA L40S"], 44_500, 49_200, 18_176, 384, 350, 91.6, 91.6, 362.05, 864),
    ("l4-24gb", "L4 24GB", ["NVIDIA L4"], 22_000, 24_600, 7424, 192, 72, 30.3, 30.3, 121.0, 300),
    ("rtx-a6000-48gb", "RTX A6000 48GB", ["NVIDIA RTX A6000"], 44_500, 49_200, 10_752, 384, 300, 38.7, 38.7, 154.8, 768),
    ("rtx-4090-24gb", "RTX 4090 24GB", ["NVIDIA GeForce RTX 4090"], 22_000, 24_600, 16_384, 384, 450, 82.6, 82.6, 165.2, 1008),
]


def seed(apps, schema_editor):
    model_rows = {
        slug: apps.get_model("providers", "GpuModel").objects.get_or_create(
            slug=slug, defaults={"name": name, "vram_gib": vram_gib, "klass": klass, "position": 10 * position}
        )[0]
        for position, (slug, name, vram_gib, klass) in enumerate(MODELS, start=1)
    }
    for slug, name, nvml_names, least, most, cores, bus, power, fp16, fp32, tensor, bandwidth in VARIANTS:
        variant, _ = apps.get_model("providers", "GpuVariant").objects.get_or_create(
            name=name,
            defaults={
                "model": model_rows[slug],
                "nvml_names": nvml_names,
                "vram_mib_least": least,
                "vram_mib_most": most,
                "cores": cores,
                "memory_bus_bits": bus,
                "power_w": power,
            },
        )
        memory = round(bandwidth * MEMORY_SHARE, 1)
        apps.get_model("providers", "VariantExpectation").objects.get_or_create(
            variant=variant,
            kernel_version=KERNEL_VERSION,
            defaults={
                "fp16_tflops": fp16,
                "fp32_tflops": fp32,
                "tensor_tflops": round(tensor * (MMA_SHARE_ON_HOPPER if slug.startswith("h100") else 1), 1),
                "vram_read_gbps": memory,
                "vram_write_gbps": memory,
            },
        )


class Migration(migrations.Migration):
    dependencies = [("providers", "0001_initial")]
    operations = [migrations.RunPython(seed, migrations.RunPython.noop)]
