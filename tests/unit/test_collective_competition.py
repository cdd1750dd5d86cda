"""Which algorithms a collective is chosen from: a new one never competes by accident, a cluster may name its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from simulator.collectives import ALGORITHMS, candidates, collective_seconds, competitors
from simulator.collectives.base import Cost
from simulator.collectives.ring import Ring
from simulator.errors import PlanError, SpecError
from simulator.hardware.cluster import Cluster, load_cluster
from simulator.hardware.fabric import fabric_of
from simulator.hardware.group_placement import describe_group

CLUSTER = """
name = "chosen"
node = "dgx_h100"
nodes = 4

[algorithms]
{algorithms}

[sources]
"*" = "invented for this test"
"""
KIBIBYTE, GROUP = 2.0**10, describe_group(32, 4)


@pytest.fixture
def newcomer(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An algorithm that is found in the family and takes no time: a variant of one that competes."""

    class Instant(Ring):
        name = "instant"

        def cost(self, *_: object) -> Cost:
            return Cost(latency=1e-12, bandwidth=1e18, ceiling=1e18)

    caches = (collective_seconds.__globals__["_price"], candidates, competitors)
    monkeypatch.setitem(ALGORITHMS.members, "instant", Instant())
    monkeypatch.setitem(ALGORITHMS._aliases, "instant", "instant")
    for cache in caches:
        cache.cache_clear()
    yield "instant"
    for cache in caches:
        cache.cache_clear()


def cluster(folder: Path, algorithms: str) -> Cluster:
    file = folder / "chosen.toml"
    file.write_text(CLUSTER.format(algorithms=algorithms))
    return load_cluster(str(file))


@pytest.mark.parametrize("kind", Ring.kinds)
def test_an_algorithm_that_is_merely_found_changes_no_prediction(newcomer: str, kind: str) -> None:
    plain = load_cluster("dgx_h100", 32)

    assert newcomer != collective_seconds(kind, KIBIBYTE, GROUP, plain).algorithm
    assert newcomer not in {candidate.algorithm for candidate in candidates(kind, GROUP, fabric_of(plain))}
    assert newcomer == collective_seconds(kind, KIBIBYTE, GROUP, plain, newcomer).algorithm


def test_a_cluster_that_names_it_lets_it_compete_for_that_kind_alone(newcomer: str, tmp_path: Path) -> None:
    chosen = cluster(tmp_path, f'broadcast = ["ring", "{newcomer}"]')

    assert newcomer == collective_seconds("broadcast", KIBIBYTE, GROUP, chosen).algorithm
    assert newcomer != collective_seconds("reduce", KIBIBYTE, GROUP, chosen).algorithm


def test_a_cluster_names_what_its_library_chooses_from(tmp_path: Path) -> None:
    own, plain = cluster(tmp_path, 'all_reduce = ["ring", "recursive_doubling"]'), load_cluster("dgx_h100", 32)
    small, large = (collective_seconds("all_reduce", size, GROUP, own) for size in (64.0, 2.0**30))

    assert ("recursive_doubling", "ring") == (small.algorithm, large.algorithm)
    assert large == collective_seconds("all_reduce", 2.0**30, GROUP, plain, "ring")
    for kind in ("all_gather", "all_to_all"):
        assert collective_seconds(kind, KIBIBYTE, GROUP, plain) == collective_seconds(kind, KIBIBYTE, GROUP, own)


@pytest.mark.parametrize(
    ("algorithms", "says"),
    [
        ('allreduce = ["ring"]', r"algorithms\.allreduce of the cluster: .*all_reduce"),
        ('all_reduce = ["rign"]', r"algorithms\.all_reduce of the cluster: .*ring"),
        (
            'all_to_all = ["pairwise", "tree"]',
            r"algorithms\.all_to_all .*such as do all_to_all.*These do: bruck, pairwise",
        ),
        ("all_reduce = []", r"names at least one"),
    ],
)
def test_a_choice_that_cannot_be_is_refused_whatever_is_asked(algorithms: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=says):
        collective_seconds("broadcast", KIBIBYTE, GROUP, cluster(tmp_path, algorithms))


def test_a_choice_of_which_none_works_on_the_group_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"no all_reduce with algorithm 'nvls' .* name more in algorithms\.all_reduce"):
        collective_seconds("all_reduce", KIBIBYTE, GROUP, cluster(tmp_path, 'all_reduce = ["nvls"]'))
