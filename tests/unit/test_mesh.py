"""The mesh: ranks, coordinates and groups."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.errors import PlanError
from simulator.plan.mesh import Mesh

sizes = st.lists(st.integers(1, 5), min_size=3, max_size=3)


@given(sizes)
def test_groups_of_an_axis_partition_the_world(dims: list[int]) -> None:
    mesh = Mesh(axes=tuple(zip(("tp", "dp", "pp"), dims, strict=True)))
    for axis, n in mesh.axes:
        groups = mesh.groups(axis)
        assert (mesh.world_size // n, n) == groups.shape
        assert list(range(mesh.world_size)) == sorted(groups.ravel().tolist())
        for group in groups[:3]:
            others = [{k: v for k, v in mesh.coordinates(int(r)).items() if k != axis} for r in group]
            assert all(o == others[0] for o in others)


def test_groups_of_two_axes() -> None:
    mesh = Mesh(axes=(("tp", 2), ("dp", 2), ("pp", 2)))
    assert [[0, 1, 4, 5], [2, 3, 6, 7]] == [sorted(g) for g in mesh.groups("tp", "pp").tolist()]


def test_rank_outside_the_world_is_refused() -> None:
    with pytest.raises(PlanError, match=r"0\.\.7, but 8"):
        Mesh(axes=(("tp", 8),)).coordinates(8)
