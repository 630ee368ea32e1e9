"""Each import rule of pyproject.toml is seen to fail on a deliberate violation in a copy of the code."""

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("gpunex", "providers", "reliability", "billing", "marketplace", "payouts", "agent")

# Contract, the module that gets a line too much, the line.
VIOLATIONS = [
    ("layers", "gpunex/kit/money.py", "import gpunex.outbox.mail"),
    ("layers", "gpunex/policy/models.py", "import gpunex.accounts.models"),
    ("layers", "gpunex/accounts/organisations.py", "def late():\n    import providers.models"),
    ("layers", "providers/models/__init__.py", "import billing.models"),
    ("layers", "billing/models.py", "import reliability.models"),
    ("layers", "billing/models.py", "import marketplace.models"),
    ("layers", "payouts/models.py", "import marketplace.models"),
    ("pages", "providers/models/__init__.py", "import gpunex.broken.views"),
    ("pages", "gpunex/broken/views.py", "import gpunex.broken.api"),
    ("tasks", "gpunex/broken/views.py", "import gpunex.broken.tasks"),
    ("agent", "agent/clock.py", "import django"),
    ("agent", "agent/clock.py", "import gpunex.kit.money"),
    ("server", "providers/models/__init__.py", "import agent.clock"),
    ("server", "gpunex/kit/money.py", "import docker"),
    ("outside", "billing/models.py", "import httpx"),
    ("outside", "gpunex/accounts/models.py", "import smtplib"),
    ("outside", "gpunex/kit/money.py", "import socket"),
    ("embedded", "gpunex/embedded/cluster.py", "import django.conf"),
]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The code alone, with an app that has a page, an endpoint and a task."""
    tree = tmp_path_factory.mktemp("tree")
    shutil.copy(ROOT / "pyproject.toml", tree)
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            target = tree / path.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)
    broken = tree / "gpunex" / "broken"
    broken.mkdir()
    for name in ("__init__", "views", "api", "tasks"):
        (broken / f"{name}.py").write_text("")
    return tree


def lint(tree: Path, *contracts: str) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).with_name("lint-imports")
    options = [part for contract in contracts for part in ("--contract", contract)]
    return subprocess.run([str(program), "--no-cache", *options], cwd=tree, capture_output=True, text=True, check=False)


def test_the_code_keeps_every_contract(tree: Path):
    done = lint(tree)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(("contract", "module", "line"), VIOLATIONS)
def test_a_violation_breaks_its_contract(tree: Path, contract: str, module: str, line: str):
    path = tree / module
    kept = path.read_text()
    path.write_text(f"{kept}\n{line}\n")
    try:
        done = lint(tree, contract)
    finally:
        path.write_text(kept)
    assert done.returncode == 1
    assert "1 broken" in done.stdout


MAY_REACH_OUT = ("gpunex/chain/", "gpunex/outside", "gpunex/outbox/", "gpunex/embedded/", "gpunex/demo/", "agent/")
REACHES_OUT = ("urllib.request", "http.client", "django.core.mail")


def imported(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def test_only_the_same_modules_open_addresses_or_send_mail_with_parts_of_larger_packages():
    """Import contracts see foreign packages whole, and ``urllib.parse`` or ``django`` are everybody's."""
    found = [
        f"{path.relative_to(ROOT)}: {name}"
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if not path.relative_to(ROOT).as_posix().startswith(MAY_REACH_OUT)
        for name in imported(path)
        if name.startswith(REACHES_OUT)
    ]
    assert found == []
