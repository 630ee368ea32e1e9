"""The embedded services, run for real in clusters of their own below a temporary folder."""

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import psycopg2
import psycopg2.errors
import pytest
import redis

from gpunex.embedded.cluster import Cluster, ClusterBusy, free_port, is_free
from gpunex.embedded.processes import EmbeddedError, command_line

ROOT = Path(__file__).resolve().parents[2]
WITHOUT_CHAIN = ("postgres", "redis")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder that stands for another checkout; the system user of PostgreSQL cannot enter it when root runs the tests."""
    return tmp_path


@pytest.fixture
def cluster(checkout: Path) -> Iterator[Cluster]:
    cluster = Cluster("test", checkout)
    yield cluster
    cluster.stop()
    cluster.reset()


def connect(cluster: Cluster) -> "psycopg2.extensions.connection":
    parts = urlsplit(cluster.database_url)
    host = parse_qs(parts.query)["host"][0]
    return psycopg2.connect(host=host, user=parts.username, dbname=parts.path.lstrip("/"))


def query(cluster: Cluster, statement: str) -> object:
    connection = connect(cluster)
    try:
        with connection, connection.cursor() as cursor:
            cursor.execute(statement)
            return cursor.fetchone() if cursor.description else None
    finally:
        connection.close()


def test_the_product_connects_as_a_plain_role_that_owns_its_database_and_can_make_test_databases(cluster: Cluster):
    cluster.start(services=WITHOUT_CHAIN)
    row = query(
        cluster,
        "SELECT rolname, rolsuper, rolcreaterole, rolcreatedb, pg_get_userbyid(datdba) FROM pg_roles, pg_database"
        " WHERE rolname = current_user AND datname = current_database()",
    )
    assert row == ("gpunex", False, False, True, "gpunex")


def test_nothing_listens_on_a_network_and_the_sockets_are_private(cluster: Cluster):
    cluster.start(services=WITHOUT_CHAIN)
    assert query(cluster, "SELECT current_setting('listen_addresses')") == ("",)
    assert stat.S_IMODE(cluster.sockets.stat().st_mode) == 0o700
    assert redis.Redis.from_url(cluster.redis_url).config_get("port") == {"port": "0"}


def test_text_sorts_and_folds_the_same_on_every_machine(cluster: Cluster):
    cluster.start(services=["postgres"])
    assert query(cluster, "SELECT lower('ÄÉ'), current_setting('timezone')") == ("äé", "UTC")


def test_data_and_addresses_survive_a_restart(cluster: Cluster):
    cluster.start(services=WITHOUT_CHAIN)
    query(cluster, "CREATE TABLE kept (n int)")
    query(cluster, "INSERT INTO kept VALUES (7)")
    before = cluster.environment()
    cluster.stop()

    again = Cluster("test", cluster.root).start(services=WITHOUT_CHAIN)
    try:
        assert query(again, "SELECT n FROM kept") == (7,)
        assert again.environment() == before
    finally:
        again.stop()


def test_all_three_services_are_up_together_and_the_chain_keeps_its_mint(cluster: Cluster):
    with cluster:
        first = cluster.environment()
        assert query(cluster, "SELECT 1") == (1,)
    with Cluster("test", cluster.root) as again:
        assert again.environment()["USDC_MINT"] == first["USDC_MINT"]
        assert Path(first["TREASURY_KEY_FILE"]).exists()


def test_a_second_launcher_of_the_same_cluster_is_told_who_runs_it(cluster: Cluster):
    cluster.start(services=["redis"])
    with pytest.raises(ClusterBusy, match=f"process {os.getpid()}"):
        Cluster("test", cluster.root).start()
    with pytest.raises(ClusterBusy):
        Cluster("test", cluster.root).reset()


def test_reset_leaves_nothing_of_the_old_data(cluster: Cluster):
    cluster.start(services=WITHOUT_CHAIN)
    key = cluster.environment()["SECRET_KEY"]
    query(cluster, "CREATE TABLE gone ()")
    cluster.stop()
    data = cluster.postgres_home.resolve()
    cluster.reset()
    assert not data.exists()

    cluster.start(services=WITHOUT_CHAIN)
    assert cluster.environment()["SECRET_KEY"] != key
    with pytest.raises(psycopg2.errors.UndefinedTable):
        query(cluster, "SELECT * FROM gone")


def test_keys_are_readable_by_their_owner_alone(cluster: Cluster):
    cluster.environment()
    assert stat.S_IMODE((cluster.folder / "secrets.json").stat().st_mode) == 0o600


def launcher(checkout: Path) -> subprocess.Popen[str]:
    """Another process that runs the cluster and says so; it is there to be killed."""
    program = textwrap.dedent("""
        import sys, signal
        from pathlib import Path
        from gpunex.embedded.cluster import Cluster
        cluster = Cluster("test", Path(sys.argv[1])).start()
        print(*(child.process.pid for child in cluster.children), flush=True)
        signal.pause()
    """)
    return subprocess.Popen([sys.executable, "-c", program, str(checkout)], cwd=ROOT, stdout=subprocess.PIPE, text=True)


def wait_for(done, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells children that their launcher died")
def test_children_die_with_a_launcher_that_is_killed(cluster: Cluster):
    with launcher(cluster.root) as killed:
        pids = [int(pid) for pid in killed.stdout.readline().split()]
        assert len(pids) == 3
        killed.kill()
    wait_for(lambda: not any(command_line(pid) for pid in pids))


def test_after_kill_9_of_everything_the_data_are_intact_and_the_next_start_needs_no_help(cluster: Cluster):
    cluster.start(services=WITHOUT_CHAIN)
    query(cluster, "CREATE TABLE kept (n int)")
    query(cluster, "INSERT INTO kept VALUES (7)")
    cluster.stop()
    with launcher(cluster.root) as killed:
        pids = [int(pid) for pid in killed.stdout.readline().split()]
        for pid in [*pids, killed.pid]:
            os.kill(pid, signal.SIGKILL)
    assert (cluster.postgres_home / "data" / "postmaster.pid").exists()

    cluster.start(services=WITHOUT_CHAIN)
    assert query(cluster, "SELECT n FROM kept") == (7,)


def test_a_pid_that_was_given_to_another_process_is_left_alone(cluster: Cluster):
    bystander = subprocess.Popen(["sleep", "60"])
    try:
        cluster.run_dir.mkdir(parents=True)
        left = {"pid": bystander.pid, "marker": str(cluster.postgres_home), "signal": int(signal.SIGKILL)}
        (cluster.run_dir / "postgres.json").write_text(json.dumps(left))
        (cluster.run_dir / "cut_off.json").write_text('{"pid": 1')
        cluster.start(services=["redis"])
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_a_service_that_does_not_start_says_why_and_leaves_nothing_running(cluster: Cluster):
    cluster.start(services=["postgres"])
    cluster.stop()
    (cluster.postgres_home / "data" / "PG_VERSION").write_text("9\n")
    with pytest.raises(EmbeddedError, match="made by PostgreSQL 9"):
        cluster.start(services=WITHOUT_CHAIN)
    assert cluster.children == ()
    (cluster.postgres_home / "data" / "PG_VERSION").write_text("18\n")
    cluster.start(services=WITHOUT_CHAIN)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives the data to a system user")
def test_data_move_to_a_shared_place_when_the_system_user_cannot_reach_the_checkout(cluster: Cluster):
    cluster.root.chmod(0o700)
    cluster.start(services=["postgres"])
    assert cluster.postgres_home.is_symlink()
    assert cluster.postgres_home.resolve().stat().st_uid != 0
    assert stat.S_IMODE(cluster.root.stat().st_mode) == 0o700, "parents are never opened up"


def test_a_port_that_is_taken_is_replaced_by_a_free_one():
    taken = free_port(20_000)
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", taken))
        holder.listen()
        assert not is_free(taken)
        other = free_port(taken)
        assert other != taken
        assert is_free(other)


def test_the_chosen_port_is_remembered_for_the_next_command(cluster: Cluster):
    cluster.folder.mkdir(parents=True)
    port = cluster.choose_port("web", preferred=free_port(21_000))
    assert Cluster("test", cluster.root).web_port == port
    assert cluster.environment()["PUBLIC_URL"].endswith(f":{port}")


def test_ports_chosen_before_the_settings_are_read_are_those_of_the_start(cluster: Cluster):
    preferred = cluster.chain_port
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if is_free(preferred):
            holder.bind(("127.0.0.1", preferred))
            holder.listen()
        cluster.choose_ports()
        told = cluster.environment()
        with cluster:
            assert cluster.environment()["SOLANA_RPC_URL"] == told["SOLANA_RPC_URL"]
            Cluster("test", cluster.root).choose_ports()
            assert cluster.environment()["SOLANA_RPC_URL"] == told["SOLANA_RPC_URL"], (
                "a running cluster keeps its ports"
            )


def test_a_name_that_would_leave_the_folder_is_refused(checkout: Path):
    with pytest.raises(EmbeddedError, match="letters, digits"):
        Cluster("../other", checkout)
