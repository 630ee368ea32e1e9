"""Programs that groups of tests need and that a machine may lack."""

import functools
import os
import shutil
import subprocess
from typing import NoReturn

import pytest

# Program to try, and Debian's package that has it.
PROGRAMS = {
    "chromium": (("chromium", "chromium-browser", "google-chrome"), "chromium"),
    "dockerd": (("dockerd", "/usr/sbin/dockerd"), "docker.io"),
    "gcc": (("gcc",), "gcc"),
    "nft": (("nft", "/usr/sbin/nft"), "nftables"),
    "shellcheck": (("shellcheck",), "shellcheck"),
}


def require(tool: str, group: str) -> str:
    """The path of a program of ``tool`` that really runs, installing it if root can; else the test is skipped.

    Under ``CI=true`` nothing that can run is skipped: there a missing program is a failure. ``group`` names what is skipped
    in the summary of the run.
    """
    found = find(tool)
    if found is None:
        _install(PROGRAMS[tool][1])
        found = find(tool)
    if found is None:
        unavailable(f"{group}: {tool} is missing (sudo apt-get install {PROGRAMS[tool][1]})")
    return found


def unavailable(reason: str) -> NoReturn:
    """Skip for what a machine cannot do; under ``CI=true``, where it could, fail."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def find(tool: str) -> str | None:
    """A stub that is on PATH and does not run (Ubuntu's chromium without snap) counts as missing."""
    for name in PROGRAMS[tool][0]:
        path = shutil.which(name)
        if path and _runs(path):
            return path
    return None


def _runs(path: str) -> bool:
    try:
        return subprocess.run([path, "--version"], capture_output=True, timeout=30, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


@functools.cache
def _install(package: str) -> None:
    """Once a run, whatever comes of it: ``require`` looks again."""
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        return
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (
        ["apt-get", "update", "-qq"],
        ["apt-get", "install", "-y", "-qq", "--no-install-recommends", package],
    ):
        if subprocess.run(command, env=environment, capture_output=True, check=False).returncode != 0:
            return
