"""pytest plugin, loaded by ``-p tests.services``: starts the embedded services before Django's settings are read.

Two runs in one checkout at once take clusters of their own: ``test``, then ``test_2`` and so on. ``GPUNEX_CLUSTER`` picks one.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpunex.embedded.cluster import Cluster, ClusterBusy
from gpunex.embedded.processes import EmbeddedError
from gpunex.kit.translations import compile_catalogues

ROOT = Path(__file__).resolve().parents[1]
RUNS_AT_ONCE = 8

cluster_key = pytest.StashKey[Cluster]()


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> Iterator[None]:
    """A wrapper, because it has to come before pytest-django's own hook of this name, which reads the settings."""
    try:
        cluster = _running_cluster()
    except EmbeddedError as error:
        pytest.exit(f"The services of the tests did not start. {error}", returncode=3)
    early_config.stash[cluster_key] = cluster
    early_config.add_cleanup(cluster.stop)
    os.environ.update(cluster.environment())
    compile_catalogues()
    return (yield)


def _running_cluster() -> Cluster:
    chosen = os.environ.get("GPUNEX_CLUSTER")
    names = [chosen] if chosen else ["test", *(f"test_{number}" for number in range(2, RUNS_AT_ONCE + 1))]
    for name in names[:-1]:
        try:
            return Cluster(name, ROOT).start()
        except ClusterBusy:
            continue
    return Cluster(names[-1], ROOT).start()
