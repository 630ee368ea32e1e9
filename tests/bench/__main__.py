"""``python -m tests.bench [GROUP] [SIZE=NUMBER …]``: measure what must stay fast, one JSON object a line on stdout.

In the cluster ``bench``, made anew, on real services. Progress goes to stderr. Exit status 1 if a target is missed.
"""

import importlib
import inspect
import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parents[2]
NAMES = ("money", "agent", "providers", "search", "reliability")
# A group's modules where they are not one of its name, in the order in which they measure.
MODULES = {"money": ("payouts", "money")}


def main(arguments: list[str]) -> int:
    sizes = dict(argument.split("=", 1) for argument in arguments if "=" in argument)
    wanted = [argument for argument in arguments if "=" not in argument] or list(NAMES)
    if unknown := set(wanted) - set(NAMES):
        sys.exit(f"There is no group {', '.join(sorted(unknown))}. There are: {', '.join(NAMES)}.")
    from gpunex.embedded.cluster import Cluster
    from gpunex.embedded.processes import EmbeddedError

    report = _own_stdout()
    cluster = Cluster("bench", ROOT)
    try:
        cluster.reset()
        cluster.start()
        os.environ.update(cluster.environment(), LOG_LEVEL="WARNING", DJANGO_SETTINGS_MODULE="gpunex.settings")
        return _measure(wanted, {name: int(size) for name, size in sizes.items()}, report)
    except EmbeddedError as error:
        sys.exit(str(error))
    finally:
        cluster.stop()


def _own_stdout() -> IO[str]:
    """What is printed from here on, by whomever, goes to stderr; the report alone has the real stdout."""
    report = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return report


def _measure(wanted: list[str], sizes: dict[str, int], report: IO[str]) -> int:
    import django
    from django.core.management import call_command

    django.setup()
    call_command("migrate", verbosity=0, interactive=False)
    from tests.bench.measure import GROUPS

    for name in wanted:
        for module in MODULES.get(name, (name,)):
            importlib.import_module(f"tests.bench.{module}")
    if "reliability" in wanted:
        importlib.import_module("tests.bench.beats")
    every = [function for name in wanted for function in GROUPS[name]]
    known = {name for function in every for name in inspect.signature(function).parameters}
    if unknown := sizes.keys() - known:
        sys.exit(f"There is no size {', '.join(sorted(unknown))}. There are: {', '.join(sorted(known))}.")
    good = True
    for function in every:
        begun = time.monotonic()
        sys.stderr.write(f"{function.__module__.rpartition('.')[2]}: {function.__name__} …\n")
        own = {name: size for name, size in sizes.items() if name in inspect.signature(function).parameters}
        try:
            for measured in function(**own):
                good &= measured.ok is not False  # None: its peer could not be had
                report.write(json.dumps(measured.as_row()) + "\n")
                report.flush()
        except Exception:  # one that fails must not hide the others
            traceback.print_exc()
            good = False
        sys.stderr.write(f"  {time.monotonic() - begun:.1f} s\n")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
