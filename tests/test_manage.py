"""The command line before Django is up: what it fills in, and what it refuses."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpunex.embedded.cluster import Cluster

ROOT = Path(__file__).resolve().parents[1]
SHOW = "from django.conf import settings as s; print(s.DATABASES['default']['HOST'], s.REDIS_URL, s.USDC_MINT)"


def manage(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), **variables}
    return subprocess.run(
        [sys.executable, "manage.py", *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("command", ["check", "migrate", "shell"])
def test_without_its_services_the_product_refuses_and_names_each_missing_one(command: str):
    done = manage(command)
    assert done.returncode == 1
    for name in (
        "SECRET_KEY",
        "FIELD_KEYS",
        "DATABASE_URL",
        "REDIS_URL",
        "SOLANA_RPC_URL",
        "TREASURY_KEY_FILE",
        "USDC_MINT",
    ):
        assert f"  {name}: " in done.stderr
    assert "Traceback" not in done.stderr


def test_only_what_is_missing_is_named():
    done = manage("check", SECRET_KEY="there")
    assert "SECRET_KEY: " not in done.stderr
    assert "FIELD_KEYS: " in done.stderr


def test_in_embedded_mode_a_command_beside_the_running_services_finds_them(cluster: Cluster):
    done = manage("shell", "--no-imports", "--command", SHOW, GPUNEX_EMBEDDED="1", GPUNEX_CLUSTER=cluster.name)
    assert done.returncode == 0, done.stderr
    told = cluster.environment()
    assert done.stdout.split() == [str(cluster.sockets), told["REDIS_URL"], told["USDC_MINT"]]


def test_a_value_that_is_given_is_kept(cluster: Cluster):
    given = {"GPUNEX_EMBEDDED": "1", "GPUNEX_CLUSTER": cluster.name, "REDIS_URL": "redis://localhost:1/0"}
    done = manage("shell", "--no-imports", "--command", SHOW, **given)
    assert done.stdout.split()[1] == "redis://localhost:1/0"


def test_a_cluster_name_that_is_none_is_one_sentence():
    done = manage("check", GPUNEX_EMBEDDED="1", GPUNEX_CLUSTER="../etc")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1


def test_one_node_of_the_chain_is_not_enough():
    names = (
        "SECRET_KEY",
        "FIELD_KEYS",
        "DATABASE_URL",
        "REDIS_URL",
        "TREASURY_KEY_FILE",
        "USDC_MINT",
        "SOLANA_GENESIS_HASH",
        "PUBLIC_URL",
        "EMAIL_URL",
    )
    given = dict.fromkeys(names, "postgres://x@y/z")
    done = manage("check", **given, SOLANA_RPC_URL="https://node.example, https://node.example")
    assert done.returncode == 1
    assert "two different nodes" in done.stderr
