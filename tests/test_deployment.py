"""The files by which a business runs GPUnex: compose file, image, environment."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
# Filled in by the embedded mode alone; a person never sets them.
EMBEDDED_ONLY = {"GPUNEX_EMBEDDED", "GPUNEX_CLUSTER", "MAIL_DIR", "FAUCET_KEY_FILE"}


@pytest.fixture(scope="module")
def services() -> dict:
    return yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]


def test_the_compose_file_is_valid():
    done = subprocess.run(
        [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", "docker-compose.yml"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_compose_file_runs_the_three_roles_and_both_services(services):
    assert {"web", "worker", "beat", "postgres", "redis"} <= set(services)


def test_services_that_others_wait_for_have_health_checks(services):
    waited_for = {
        name
        for service in services.values()
        for name, rule in service.get("depends_on", {}).items()
        if rule["condition"] == "service_healthy"
    }
    assert waited_for == {"postgres", "redis"}
    assert all("healthcheck" in services[name] for name in (*waited_for, "web", "worker"))


def test_the_product_drops_every_privilege(services):
    assert "USER gpunex" in (ROOT / "Dockerfile").read_text()
    for name in ("web", "worker", "beat", "migrate"):
        assert services[name]["cap_drop"] == ["ALL"]
        assert services[name]["read_only"] is True
        assert "no-new-privileges:true" in services[name]["security_opt"]


def test_only_the_web_port_is_published_and_on_loopback_unless_said_otherwise(services):
    assert [name for name, service in services.items() if "ports" in service] == ["web"]
    assert services["web"]["ports"] == ["${WEB_BIND:-127.0.0.1:8000}:8000"]


def test_every_variable_of_the_settings_is_in_the_example():
    read = set()
    for path in (ROOT / "gpunex" / "settings.py", ROOT / "gpunex" / "kit" / "logs.py", ROOT / "gpunex" / "celery.py"):
        text = path.read_text()
        read |= set(re.findall(r'(?:_env|_flag|environ\.get|getenv)\(\s*"([A-Z][A-Z_]+)"', text))
        read |= set(re.findall(r'environ\["([A-Z][A-Z_]+)"\]', text))
        required = re.search(r"^REQUIRED = \{(.*?)^\}", text, re.DOTALL | re.MULTILINE)
        read |= set(re.findall(r'"([A-Z_]+)":', required[1])) if required else set()
    shown = set(re.findall(r"^#?([A-Z_]+)=", (ROOT / ".env.example").read_text(), re.MULTILINE))
    assert "SECRET_KEY" in read
    assert read - EMBEDDED_ONLY - shown == set()


def test_every_variable_of_the_compose_file_is_in_the_example():
    named = set(re.findall(r"\$\{([A-Z_]+)", (ROOT / "docker-compose.yml").read_text()))
    shown = set(re.findall(r"^#?([A-Z_]+)=", (ROOT / ".env.example").read_text(), re.MULTILINE))
    assert named - shown == set()


def test_the_image_gets_every_package_and_no_secret():
    copied = set(re.findall(r"^COPY (\S+)", (ROOT / "Dockerfile").read_text(), re.MULTILINE))
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests"}
    assert packages <= copied
    let_in = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert packages <= let_in
    assert not {".env", ".gpunex", ".git", "tests"} & let_in
