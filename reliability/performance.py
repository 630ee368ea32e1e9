"""The performance score of a GPU: two numbers from the same five measures.

**Against its model**, so that 100 is a card of its model as it should be: the geometric mean of measured over expected
values, FP16, FP32 and tensor FLOPS and VRAM read and write, times 100. Twice as fast in one of five measures is worth as
much as half as fast in another costs. The expected values are those of the card's variant and of the version of our
kernels (``VariantExpectation``).

>>> expected = VariantExpectation(fp16_tflops=80, fp32_tflops=80, tensor_tflops=160, vram_read_gbps=900, vram_write_gbps=900)
>>> run = {"fp16_tflops": 80, "fp32_tflops": 80, "tensor_tflops": 160, "vram_read_gbps": 900, "vram_write_gbps": 450}
>>> round(performance_of(run, expected), 1)  # 100 × (1 × 1 × 1 × 1 × 0.5) ^ (1/5)
87.1

**Across models**, in points: the same mean over one fixed reference (``REFERENCE``: round numbers near an A100's, which never
change), times 1,000. A card of 2,000 points is on the whole twice as fast as one of 1,000.

>>> round(absolute_of(run))  # 1000 × (80/80 × 80/20 × 160/300 × 900/1500 × 450/1500) ^ (1/5)
826
>>> round(absolute_of(dict(REFERENCE)))
1000
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from providers.models import Gpu, VariantExpectation
from reliability.models import Benchmark

MEASURES = ("fp16_tflops", "fp32_tflops", "tensor_tflops", "vram_read_gbps", "vram_write_gbps")
REFERENCE: Mapping[str, float] = {
    "fp16_tflops": 80.0,
    "fp32_tflops": 20.0,
    "tensor_tflops": 300.0,
    "vram_read_gbps": 1500.0,
    "vram_write_gbps": 1500.0,
}


def performance_of(values: Mapping[str, Any], expected: VariantExpectation) -> float:
    """Against its model: see the module's formula. The values are above 0."""
    return 100 * _mean(values[name] / getattr(expected, name) for name in MEASURES)


def absolute_of(values: Mapping[str, Any]) -> float:
    """Across models, in points: see the module's formula. The values are above 0."""
    return 1000 * _mean(values[name] / REFERENCE[name] for name in MEASURES)


def points_of(gpus: Iterable[Gpu]) -> dict[int, float]:
    """The points of each card's last accepted run, by the card's key: one query. Cards that were never measured are left out."""
    rows = (
        Benchmark.objects.filter(gpu__in=[gpu.pk for gpu in gpus], state=Benchmark.State.ACCEPTED)
        .order_by("gpu_id", "-requested_at", "-pk")
        .distinct("gpu_id")
        .values_list("gpu_id", "absolute")
    )
    return {gpu: points for gpu, points in rows if points is not None}


def _mean(ratios: Iterable[float]) -> float:
    found = list(ratios)
    return math.exp(math.fsum(math.log(ratio) for ratio in found) / len(found))
