"""Which benchmark results are believed, and what a result proves.

A result is a machine's own word. It answers one nonce, once, for the cards it was asked for, no sooner than its seconds
could have passed, and its numbers must be possible: above 0, within 1.25 of what the card should reach (a card outside the
catalogue: within what no card reaches), and in proportion to one another, since FP16 and FP32 run on the same cores at the
same clock, and reading and writing on the same memory.

**What is proved, plainly.** The checksum is SHA-256 over the nonce, the cards' UUIDs and the version of the kernels. It
shows that the answer was made for this request and after it, and that a kept or a foreign answer cannot be sent. It does
*not* show that a GPU did the work: the kernels' results do not depend on the nonce, and whoever runs a changed agent can make
numbers up. What makes a lie costly is the rest: the time it takes, the bounds and proportions here, the card's own history
(``reliability.anomalies`` shows what is too good for it), one UUID on one machine, the renters' jobs that run on what was
claimed, and the admission of each machine to an approved application.

A refusal is kept as a code with its figures; words are made when somebody reads it:

>>> found = implausible({"fp16_tflops": float("nan")}, None)
>>> found.code, found.facts
('not_a_number', {'measure': 'fp16_tflops'})
"""

import hashlib
import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from providers.models import VariantExpectation, Workload
from reliability.models import Benchmark
from reliability.performance import MEASURES

IMPLAUSIBLE = 1.25  # times the expected value
CHECKSUM_ROUNDS = 1000
SOONER = timedelta(seconds=0.5)  # two clocks that run at different speeds
# What no card of today comes near: for cards whose model we do not know.
LIMITS = {
    "fp16_tflops": 2_000.0,
    "fp32_tflops": 500.0,
    "tensor_tflops": 10_000.0,
    "vram_read_gbps": 30_000.0,
    "vram_write_gbps": 30_000.0,
}
# Two shares of the expected values that run on the same silicon, and how far apart they may be.
TOGETHER = (
    ("fp16_tflops", "fp32_tflops", 2.0),
    ("tensor_tflops", "fp16_tflops", 3.0),
    ("vram_read_gbps", "vram_write_gbps", 3.0),
)
MOST_SUSTAINED = 1.15  # nothing holds more than its peak

MEASURE_WORDS: dict[str, str | Promise] = {
    "fp16_tflops": _("FP16"),
    "fp32_tflops": _("FP32"),
    "tensor_tflops": _("tensor cores"),
    "vram_read_gbps": _("VRAM read"),
    "vram_write_gbps": _("VRAM write"),
    "sustained_ratio": _("sustained share"),
}
WORDS: dict[str, str | Promise] = {
    # The answer as a whole.
    "nonce": _("The result answers another request."),
    "kernels": _("The result is of another version of the kernels."),
    "simulated": _("A simulated machine answered for a real one, or the other way round."),
    "cards": _("The result names GPUs that were not to be measured."),
    "checksum": _("The checksum does not fit the request."),
    "too_early": _("The result came after %(after)s s; measuring takes at least %(least)s s."),
    # One card.
    "missing": _("The result lacks this GPU."),
    "gone": _("The GPU was gone before its result came."),
    "not_a_number": _("%(measure)s is not a number above 0."),
    "above_peak": _("%(measure)s is %(value)s, more than the %(limit)s that this card can reach."),
    "above_peak_before": _("%(measure)s is more than this card can reach."),  # of runs before the figures were kept
    "disagree": _(
        "%(measure)s and %(other)s do not fit together: their shares of the expected values differ %(times)s times."
    ),
    # No result.
    "busy": _("Another program was on the GPU."),
    "benchmark_unreported": _("The machine did not answer in time."),
    "gpu_unavailable": _("The GPU could not be used."),
    "gpu_lost": _("The GPU was lost while it was measured."),
    "docker_failed": _("Docker could not start the benchmark."),
    "disk_full": _("The disk is full."),
    "host_restart": _("The host restarted."),
    "agent_shutdown": _("The agent was stopped."),
    "deadline": _("The benchmark did not end in time."),
    "stopped": _("The benchmark was stopped."),
    "completed": _("The benchmark ended without a result."),
    "exit_nonzero": _("The benchmark failed on the host."),
    "oom": _("The benchmark ran out of memory."),
}


@dataclass(frozen=True)
class Disbelief:
    """Why a result is not believed: a code of ``WORDS`` and the figures it rests on."""

    code: str
    facts: dict[str, Any] = field(default_factory=dict)


def least_time(*, cards: int, seconds: float, simulated: bool) -> timedelta:
    """How long measuring so many cards takes at least: a sustained run each, one after the other. Simulated ones take no time."""
    return timedelta() if simulated else timedelta(seconds=seconds * cards)


def unbound(
    *, workload: Workload, runs: Sequence[Benchmark], result: Mapping[str, Any], seconds: float, at: datetime
) -> Disbelief | None:
    """Why ``result`` is no answer to what these runs asked for; None if it is one."""
    first = runs[0]
    if result["nonce"] != first.nonce:
        return Disbelief("nonce")
    if result["kernel_version"] != first.kernel_version:
        return Disbelief("kernels")
    if result["simulated"] != first.simulated:
        return Disbelief("simulated")
    reported = [gpu["uuid"] for gpu in result["gpus"]]
    if len(set(reported)) < len(reported) or not set(reported) <= set(workload.gpu_uuids):
        return Disbelief("cards")
    expected = checksum(first.nonce, workload.gpu_uuids, first.kernel_version)
    if not secrets.compare_digest(result["checksum"].lower().encode(), expected.encode()):
        return Disbelief("checksum")
    least = least_time(cards=len(runs), seconds=seconds, simulated=first.simulated)
    after = at - first.requested_at
    if after < least - SOONER:
        return Disbelief(
            "too_early", {"after": round(after.total_seconds(), 1), "least": round(least.total_seconds(), 1)}
        )
    return None


def checksum(nonce: str, uuids: Sequence[str], kernel_version: str) -> str:
    """What the protocol binds a result with: SHA-256 of the nonce, folded 1000 times with each card in order of UUID."""
    state = hashlib.sha256(nonce.encode()).digest()
    for uuid in sorted(uuids):
        tail = (uuid + kernel_version).encode()
        for _round in range(CHECKSUM_ROUNDS):
            state = hashlib.sha256(state + tail).digest()
    return state.hex()


def implausible(values: Mapping[str, Any], expected: VariantExpectation | None) -> Disbelief | None:
    """Why these values of one card cannot be; None if they can.

    >>> expected = VariantExpectation(fp16_tflops=80, fp32_tflops=80, tensor_tflops=160, vram_read_gbps=900, vram_write_gbps=900)
    >>> run = {"fp16_tflops": 80, "fp32_tflops": 30, "tensor_tflops": 160, "vram_read_gbps": 900, "vram_write_gbps": 850}
    >>> implausible(run, expected)
    Disbelief(code='disagree', facts={'measure': 'fp16_tflops', 'other': 'fp32_tflops', 'times': 2.7})
    >>> implausible(run | {"fp32_tflops": 800}, expected)
    Disbelief(code='above_peak', facts={'measure': 'fp32_tflops', 'value': 800, 'limit': 100.0})
    """
    for name in MEASURES:
        value = values.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
            return Disbelief("not_a_number", {"measure": name})
        limit = IMPLAUSIBLE * getattr(expected, name) if expected else LIMITS[name]
        if value > limit:
            return Disbelief("above_peak", {"measure": name, "value": round(value, 1), "limit": round(limit, 1)})
    if expected:
        shares = {name: values[name] / getattr(expected, name) for name in MEASURES}
        for name, other, most in TOGETHER:
            times = max(shares[name], shares[other]) / min(shares[name], shares[other])
            if times > most:
                return Disbelief("disagree", {"measure": name, "other": other, "times": round(times, 1)})
    sustained = values.get("sustained_ratio")
    if sustained is not None and sustained > MOST_SUSTAINED:
        return Disbelief(
            "above_peak", {"measure": "sustained_ratio", "value": round(sustained, 2), "limit": MOST_SUSTAINED}
        )
    return None


def in_words(code: str, facts: Mapping[str, Any] | None = None) -> str:
    """A code in the active language; one that is not known as it is, and "" for none."""
    if not code:
        return ""
    facts = dict(facts or {})
    for name in ("measure", "other"):
        if name in facts:
            facts[name] = str(MEASURE_WORDS.get(facts[name], facts[name]))
    for name in ("after", "least", "value", "limit", "times"):
        if isinstance(facts.get(name), int | float):
            facts[name] = f"{facts[name]:,}"
    try:
        return str(WORDS.get(code, code)) % facts
    except (KeyError, ValueError, TypeError):  # an older row without its figures
        return code
