"""A tiny command language, so that the log of a simulated job looks like a job's.

A command becomes a plan: lines with the second at which they appear, and when and how the whole ends. The plan is made once
and kept, so what a container has done is a function of the time alone; no process needs to live for it.

Known: ``echo``, ``sleep``, ``exit``, ``true``, ``false``, ``env``, ``nvidia-smi``, joined by ``;``, ``&&`` or line ends, also behind ``sh -c``.
Anything else prints a simulated training log and ends with 0.
"""

from __future__ import annotations

import random
import re
import shlex
from dataclasses import dataclass, field

JOB_SECONDS = 20.0
MAX_SECONDS = 30 * 86400.0
NOTICE = (
    "[simulated] No GPU and no container stand behind this job: its command was interpreted, its output is made up."
)
_SHELLS = frozenset({"sh", "bash", "dash", "/bin/sh", "/bin/bash", "/usr/bin/bash", "/usr/bin/sh"})
_SPLIT = re.compile(r"&&|[;\n]")
_VARIABLE = re.compile(r"\$\{?([A-Za-z_][A-Za-z0-9_]*)\}?")


@dataclass
class Plan:
    """Lines as (second, text), the second at which the container ends and its exit code."""

    lines: list[tuple[float, str]] = field(default_factory=list)
    ends_after_s: float = 0.0
    exit_code: int = 0


def interpret(
    command: list[str] | None, *, env: dict[str, str], gpus: list[str], seed: str, job_seconds: float = JOB_SECONDS
) -> Plan:
    """The plan of a command. `gpus` are the names of the cards it was given; the same seed makes the same plan.

    >>> plan = interpret(["sh", "-c", "echo hello; sleep 2; exit 3"], env={}, gpus=["NVIDIA L4"], seed="a")
    >>> plan.lines[1][1], round(plan.ends_after_s, 1), plan.exit_code
    ('hello', 2.4, 3)
    """
    plan = Plan(lines=[(0.2, NOTICE)], ends_after_s=0.2)
    for text, needs_success in _commands(command):
        if needs_success and plan.exit_code != 0:
            continue
        words = _words(text, env)
        if not words:
            continue
        if _step(words, plan=plan, env=env, gpus=gpus, seed=seed, job_seconds=job_seconds):
            break
    plan.ends_after_s = min(MAX_SECONDS, plan.ends_after_s + 0.1)
    return plan


def _commands(command: list[str] | None) -> list[tuple[str, bool]]:
    """The simple commands in order, each with whether it runs only after success."""
    if not command:
        return [("train", False)]
    if command[0] in _SHELLS and len(command) >= 3 and command[1].lstrip("-+") in ("c", "lc", "ec", "cl", "exc"):
        script = command[2]
        found, start, needs = [], 0, False
        for match in _SPLIT.finditer(script):
            found.append((script[start : match.start()], needs))
            needs, start = match.group() == "&&", match.end()
        found.append((script[start:], needs))
        return found
    return [(shlex.join(command), False)]


def _words(text: str, env: dict[str, str]) -> list[str]:
    expanded = _VARIABLE.sub(lambda match: env.get(match.group(1), ""), text)
    try:
        return shlex.split(expanded, comments=True)
    except ValueError:
        return expanded.split()


def _step(words: list[str], *, plan: Plan, env: dict[str, str], gpus: list[str], seed: str, job_seconds: float) -> bool:
    """Add one command's effect to the plan; True when the script ends here."""
    name, arguments = words[0].rpartition("/")[2], words[1:]
    plan.exit_code = 0
    if name == "exit":
        plan.exit_code = int(arguments[0]) % 256 if arguments and arguments[0].lstrip("-").isdigit() else 0
        return True
    plan.ends_after_s += 0.05
    if name == "echo":
        plan.lines.append((plan.ends_after_s, " ".join(arguments)))
    elif name == "sleep":
        plan.ends_after_s += _seconds(arguments)
    elif name == "false":
        plan.exit_code = 1
    elif name in ("env", "printenv"):
        plan.lines += [(plan.ends_after_s, f"{key}={value}") for key, value in sorted(env.items())]
    elif name == "nvidia-smi":
        plan.lines += [(plan.ends_after_s, f"GPU {index}: {gpu} (simulated)") for index, gpu in enumerate(gpus)]
    elif name not in ("true", "cd", "set", "export", "mkdir", ":"):
        _train(" ".join(words), plan=plan, gpus=gpus, seed=seed, seconds=job_seconds)
    return False


def _seconds(arguments: list[str]) -> float:
    """What ``sleep`` would wait: numbers with s, m, h or d, or for ever."""
    total = 0.0
    for argument in arguments:
        if argument in ("infinity", "inf"):
            return MAX_SECONDS
        match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", argument)
        if match:
            total += float(match.group(1)) * {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}[match.group(2)]
    return min(total, MAX_SECONDS)


def _train(what: str, *, plan: Plan, gpus: list[str], seed: str, seconds: float) -> None:
    """A training run that goes well: one line a second or so, a loss that falls."""
    rng = random.Random(f"{seed}:{what}")
    start = plan.ends_after_s
    plan.lines.append((start, f"$ {what}" if what != "train" else "$ (the image's own command)"))
    plan.lines.append((start + 0.3, f"found {len(gpus)} device(s): {', '.join(gpus) or 'none'}"))
    count = max(3, min(600, round(seconds)))
    loss = 10.4
    for index in range(1, count + 1):
        loss = 2.1 + (loss - 2.1) * rng.uniform(0.86, 0.93)
        speed = 11_400 * max(1, len(gpus)) * rng.uniform(0.97, 1.03)
        line = f"step {index * 50:>6} | loss {loss:7.4f} | lr {3e-4 * (1 - index / (count + 1)):.2e} | {speed:>9,.0f} tokens/s"
        plan.lines.append((start + seconds * index / (count + 1), line))
    plan.ends_after_s = start + seconds
    plan.lines.append((plan.ends_after_s, f"done: {count * 50} steps, final loss {loss:.4f}"))
