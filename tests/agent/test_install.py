"""install.sh without a terminal, with commands of our own on PATH in place of docker, nvidia-smi, systemctl, nft and curl."""

import os
import shutil
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

import pytest

from tests.requirements import require

SCRIPT = Path(__file__).resolve().parent.parent.parent / "agent" / "install.sh"
GPU = "GPU-0a000000-0000-0000-0000-000000000000"
FAKES = {
    "docker": """case "$1 $2" in
  "version --format") echo "${FAKE_DOCKER_VERSION:-28.5.1}" ;;
  "info --format") case "$3" in *Security*) echo "${FAKE_SECURITY:-[]}" ;; *) echo "${FAKE_SYSTEM:-Debian}" ;; esac ;;
  "--version ") echo "${FAKE_DOCKER_NAME:-Docker version 28.5.1}" ;;
  *) echo "docker $*" >>"$CALLS" ;;
esac""",
    "nvidia-smi": f"""[ -z "$FAKE_SMI_FAILS" ] || {{ echo "$FAKE_SMI_FAILS"; exit 18; }}
case "$1" in *driver_version*) echo 580.95.05 ;; *) echo "{GPU}, NVIDIA L4" ;; esac""",
    "nvidia-container-toolkit": 'echo "NVIDIA Container Runtime Hook version ${FAKE_TOOLKIT:-1.18.2}"',
    "systemctl": 'echo "systemctl $*" >>"$CALLS"',
    "nft": 'echo "nft $*" >>"$CALLS"',
    "curl": """[ -z "$FAKE_CURL_STATUS" ] || exit "$FAKE_CURL_STATUS"
printf 'HTTP/2 200\\r\\ndate: %s\\r\\n' "$FAKE_DATE" """,
}

Install = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def install(tmp_path: Path) -> Install:
    """Run the script as `curl | bash` would, in a session without a terminal."""
    if os.geteuid() != 0:
        pytest.skip("the installer's checks are run as root, so that no sudo asks")
    bin_folder, system = tmp_path / "bin", tmp_path / "systemd"
    bin_folder.mkdir()
    system.mkdir()
    for name, body in FAKES.items():
        (bin_folder / name).write_text(f"#!/bin/sh\n{body}\n")
        (bin_folder / name).chmod(0o755)
    for tool in ("bash", "sh", "cat", "uname", "id", "readlink", "grep", "head", "sed", "sort", "tr", "tail", "date", "df", "awk", "mktemp",
                 "rm", "install", "test", "mkdir", "chmod", "chown", "sleep", "dirname", "stat", "mv"):  # fmt: skip
        (bin_folder / tool).symlink_to(shutil.which(tool) or f"/usr/bin/{tool}")

    def run(
        *options: str, without: tuple[str, ...] = (), script: str | None = None, **env: str
    ) -> subprocess.CompletedProcess[str]:
        for name in without:
            (bin_folder / name).unlink()
        text = (script or SCRIPT.read_text()).replace("@@GPUNEX_URL@@", "https://gpunex.example")
        text = text.replace("@@GPUNEX_AGENT_IMAGE@@", "registry.gpunex.example/agent@sha256:" + "a" * 64)
        text = text.replace('PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin"', "true")  # only our own commands are there
        environment = {
            "PATH": str(bin_folder), "CALLS": str(tmp_path / "calls"), "GPUNEX_SYSTEMD_RUN": str(system),
            "FAKE_DATE": format_datetime(datetime.now(UTC), usegmt=True), "GPUNEX_API_KEY": "gpxe_secret", **env,
        }  # fmt: skip
        environment = {name: value for name, value in environment.items() if value}
        return subprocess.run(
            ["bash", "-s", "--", *options],
            input=text,
            env=environment,
            text=True,
            capture_output=True,
            timeout=30,
            start_new_session=True,
            check=False,
        )

    return run


def calls(tmp_path: Path) -> str:
    path = tmp_path / "calls"
    return path.read_text() if path.exists() else ""


def test_shellcheck_finds_nothing() -> None:
    tool = require("shellcheck", "the installer")
    done = subprocess.run([tool, SCRIPT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.spec("B1")
def test_a_dry_run_checks_everything_says_what_it_would_do_and_changes_nothing(
    install: Install, tmp_path: Path
) -> None:
    done = install("--dry-run")
    assert done.returncode == 0, done.stderr
    assert "Nothing was changed" in done.stdout
    assert "would write: /etc/gpunex/key (mode 400)" in done.stdout
    assert "would run: docker pull" in done.stdout
    assert "gpxe_secret" not in done.stdout + done.stderr
    assert calls(tmp_path) == ""
    assert not Path("/etc/gpunex").exists()


@pytest.mark.spec("B1")
@pytest.mark.case("agent-21", "agent-22", "agent-16", "agent-42", "agent-47")
@pytest.mark.parametrize(
    ("env", "without", "status", "words"),
    [
        ({}, ("docker",), 24, "Docker is not installed"),
        ({"FAKE_DOCKER_NAME": "podman version 5"}, (), 28, "podman"),
        ({"FAKE_SECURITY": '["name=rootless"]'}, (), 27, "rootless"),
        ({"FAKE_SYSTEM": "Docker Desktop"}, (), 29, "Docker Desktop"),
        ({"FAKE_DOCKER_VERSION": "20.10.24"}, (), 40, "20.10.24 is too old"),
        ({}, ("nvidia-smi",), 30, "no NVIDIA driver"),
        ({"FAKE_SMI_FAILS": "Driver/library version mismatch"}, (), 31, "Reboot"),
        ({"FAKE_SMI_FAILS": "couldn't communicate"}, (), 30, "couldn't communicate"),
        ({}, ("nvidia-container-toolkit",), 32, "Toolkit is not installed"),
        ({"FAKE_TOOLKIT": "1.17.7"}, (), 32, "1.17.7"),
        ({}, ("systemctl",), 34, "no systemd"),
        ({}, ("nft",), 41, "nftables"),
        ({"FAKE_CURL_STATUS": "7"}, (), 36, "cannot be reached"),
        ({"FAKE_CURL_STATUS": "60"}, (), 37, "certificate"),
        ({"FAKE_DATE": format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)}, (), 38, "clock is off"),
        ({"GPUNEX_API_KEY": ""}, (), 39, "no terminal"),
        ({"GPUNEX_API_KEY": "hunter2"}, (), 39, "not a GPUnex key"),
        ({"GPUNEX_GPUS": "GPU-x"}, (), 43, "no GPU GPU-x"),
        ({"GPUNEX_URL": "http://gpunex.example"}, (), 36, "not https"),
    ],
)  # fmt: skip
def test_each_thing_that_is_wrong_has_its_status_and_its_remedy(
    install: Install, env: dict[str, str], without: tuple[str, ...], status: int, words: str
) -> None:
    done = install("--dry-run", without=without, **env)
    assert done.returncode == status, done.stdout + done.stderr
    assert words in done.stderr
    assert "What to do:" in done.stderr


def test_a_key_file_is_read_and_a_missing_one_named(install: Install, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("gpxk_from_file\n")
    assert install("--dry-run", "--key-file", str(key), GPUNEX_API_KEY="").returncode == 0
    done = install("--dry-run", "--key-file", str(tmp_path / "none"), GPUNEX_API_KEY="")
    assert done.returncode == 39


def test_an_unknown_option_is_refused_with_the_usage(install: Install) -> None:
    done = install("--instal")
    assert done.returncode == 2
    assert "--key-file FILE" in done.stderr
    assert install("--key-file").returncode == 2


@pytest.mark.spec("B1")
@pytest.mark.parametrize("part", [0.1, 0.5, 0.9, 0.999])
def test_half_a_download_runs_nothing(install: Install, tmp_path: Path, part: float) -> None:
    text = SCRIPT.read_text()
    done = install(script=text[: int(len(text) * part)])
    assert "GPUnex agent for" not in done.stdout
    assert calls(tmp_path) == ""


@pytest.fixture
def elsewhere(tmp_path: Path) -> str:
    """The script with the places it writes to moved under the test's folder."""
    text = SCRIPT.read_text()
    for place in ("/etc/gpunex", "/var/lib/gpunex", "/usr/local/lib/gpunex", "/etc/systemd/system"):
        text = text.replace(f"={place}\n", f"={tmp_path}{place}\n")
    socket = tmp_path / "docker.sock"
    socket.touch()
    return text.replace("/var/run/docker.sock", str(socket)).replace(
        'mkdir -p "$STATE"', f"mkdir -p {tmp_path}/var/lib/gpunex"
    )


@pytest.mark.spec("B1")
def test_a_whole_installation_ends_with_a_heartbeat_and_keeps_the_key_to_itself(
    install: Install, elsewhere: str, tmp_path: Path
) -> None:
    done = install(script=elsewhere)
    assert done.returncode == 0, done.stderr
    assert "Connected." in done.stdout
    key = tmp_path / "etc/gpunex/key"
    assert (key.read_text(), key.stat().st_mode & 0o777, key.stat().st_uid) == ("gpxe_secret\n", 0o400, 10001)
    ran = calls(tmp_path)
    assert "gpxe_secret" not in ran + done.stdout + done.stderr
    order = [
        "docker pull",
        "systemctl start gpunex-egress",
        "--enrol-only",
        "systemctl restart gpunex-agent",
        "docker exec gpunex-agent",
    ]
    assert [ran.index(step) for step in order] == sorted(ran.index(step) for step in order)
    started = next(line for line in ran.splitlines() if "--enrol-only" in line)
    for wall in ("--read-only", "--cap-drop ALL", "no-new-privileges", "--user 10001:", "readonly"):
        assert wall in started
    again = install(script=elsewhere, GPUNEX_API_KEY="gpxe_other")
    assert again.returncode == 0, again.stderr
    assert key.read_text() == "gpxe_other\n"


@pytest.mark.case("agent-47")
def test_without_a_heartbeat_success_is_not_claimed(install: Install, elsewhere: str, tmp_path: Path) -> None:
    silent = elsewhere.replace("sleep 2", ":").replace('docker_ exec "$NAME_OF_CONTAINER"', "false")
    done = install(script=silent)
    assert done.returncode == 42
    assert "Connected" not in done.stdout


def test_what_it_writes_is_sound(install: Install, elsewhere: str, tmp_path: Path) -> None:
    assert install(script=elsewhere).returncode == 0
    library, units = tmp_path / "usr/local/lib/gpunex", tmp_path / "etc/systemd/system"
    if shutil.which("shellcheck"):
        done = subprocess.run(
            ["shellcheck", library / "run-agent", library / "egress"], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout
    if shutil.which("systemd-analyze"):
        docker = units / "docker.service"
        docker.write_text("[Service]\nExecStart=/bin/true\n")
        names = [
            units / name
            for name in ("gpunex-agent.service", "gpunex-egress.service", "gpunex-egress.timer", "docker.service")
        ]
        done = subprocess.run(["systemd-analyze", "verify", *names], capture_output=True, text=True, check=False)
        assert "gpunex" not in done.stderr, done.stderr
    if shutil.which("unshare") and shutil.which("nft"):
        rules = tmp_path / "etc/gpunex/egress.nft"
        script = f"nft -f {rules} && nft -f {rules} && nft list table inet gpunex"
        done = subprocess.run(["unshare", "--net", "sh", "-c", script], capture_output=True, text=True, check=False)
        if "Operation not permitted" in done.stderr:
            pytest.skip("no network namespaces here to try the egress table in")
        assert done.returncode == 0, done.stderr
        assert "chain jobs_forward {" in done.stdout
        assert "chain jobs_input {" in done.stdout


def test_uninstalling_dry_says_what_it_would_remove(install: Install, tmp_path: Path) -> None:
    done = install("--uninstall", "--dry-run")
    assert done.returncode == 0
    assert "would retire this machine" in done.stdout
    assert "/var/lib/gpunex" in done.stdout
    assert calls(tmp_path) == ""
