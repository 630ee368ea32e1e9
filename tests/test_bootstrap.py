"""What a fresh checkout does before there is a virtual environment. CI runs the whole of it; here are the ways it ends."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Only what the bootstrap reads, with a version manager's shim for uv on PATH that fails as pyenv's does."""
    checkout = tmp_path / "checkout"
    (checkout / ".ci").mkdir(parents=True)
    shutil.copy(ROOT / ".ci" / "bootstrap.sh", checkout / ".ci")
    shutil.copy(ROOT / ".python-version", checkout)
    program(checkout / "shims" / "uv", "echo 'uv: command not found' >&2; exit 127")
    return checkout


def program(path: Path, body: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/bash\n{body}\n")
    path.chmod(0o755)


def bootstrap(checkout: Path) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": f"{checkout / 'shims'}:{os.defpath}", "HOME": str(checkout)}
    return subprocess.run(
        ["bash", ".ci/bootstrap.sh"], cwd=checkout, env=environment, capture_output=True, text=True, check=False
    )


def test_a_python_that_cannot_be_had_is_one_clear_line(checkout: Path):
    program(checkout / ".gpunex/uv/bin/uv", '[ "$1" = --version ] || { echo "error: no interpreter" >&2; exit 2; }')
    done = bootstrap(checkout)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "GPUnex needs Python 3.12 or newer, and none is here or can be fetched: install python3.12 and try again."
    ]


def test_a_uv_shim_that_fails_is_passed_over_for_our_own_which_gets_the_locked_packages(checkout: Path):
    program(checkout / "python/bin/python3.12", "exit 0")  # says yes to whatever it is asked
    program(
        checkout / ".gpunex/uv/bin/uv",
        f"""
        echo "$@" >> {checkout}/calls
        case "$1 $2" in
          "python find") echo {checkout}/python/bin/python3.12 ;;
          venv*) mkdir -p .venv/bin && cp {checkout}/python/bin/python3.12 .venv/bin/python ;;
        esac
        """,
    )
    done = bootstrap(checkout)
    assert done.returncode == 0, done.stderr
    calls = (checkout / "calls").read_text().splitlines()
    assert calls[-1] == "sync --locked --quiet"

    (checkout / "calls").unlink()
    assert bootstrap(checkout).returncode == 0
    assert "venv" not in (checkout / "calls").read_text(), "an environment that is there is kept"


def test_make_lists_what_can_be_done():
    if shutil.which("make") is None:
        pytest.skip("make: it is not installed")
    shown = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for target in ("demo", "test", "soak", "check", "bench"):
        assert f"make {target}" in shown
