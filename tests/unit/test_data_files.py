"""Every data file of the product: it loads, says where its numbers come from, and agrees with what was published."""

from __future__ import annotations

import re
from typing import Any

import pytest

from simulator.hardware.cluster import ClusterSpec, Node, load_cluster
from simulator.hardware.gpu import Gpu
from simulator.hardware.link import Link
from simulator.specs import NamedSpec, find_spec, load_all, load_spec, names, read_toml
from simulator.workload.model import Model

CLASSES: dict[str, type[NamedSpec]] = {
    "gpus": Gpu, "links": Link, "nodes": Node, "clusters": ClusterSpec, "models": Model,
}  # fmt: skip
FILES = [(kind, name) for kind in CLASSES for name in names(kind)]
WORDS = {"name", "aliases", "notes", "sources", "technology", "switched"}


@pytest.mark.parametrize(("kind", "name"), FILES)
def test_a_file_loads_and_bears_its_own_name(kind: str, name: str) -> None:
    assert name == load_spec(find_spec(kind, name), CLASSES[kind]).name


@pytest.mark.parametrize(("kind", "name"), FILES)
def test_every_key_has_a_source(kind: str, name: str) -> None:
    data = read_toml(find_spec(kind, name))
    sources = data["sources"]
    inner = {key for value in data.values() if isinstance(value, dict) for key in value}
    assert set() == set(sources) - set(data) - inner - {"*"}
    assert all(len(text) >= 10 for text in sources.values())
    assert set() == (set() if "*" in sources else set(data) - WORDS - set(sources))


@pytest.mark.parametrize("kind", CLASSES)
def test_no_two_files_answer_to_one_name(kind: str) -> None:
    for name, spec in load_all(kind, CLASSES[kind]).items():
        for word in (name, *spec.aliases):
            assert name == find_spec(kind, word.upper().replace("_", "-")).stem


@pytest.mark.parametrize("name", names("clusters"))
def test_a_cluster_builds_at_its_own_size_and_at_one_gpu(name: str) -> None:
    cluster = load_cluster(name)
    assert cluster.spec.nodes * cluster.node.gpus == cluster.world_size
    assert 1 == len(cluster.resized(1).levels)


@pytest.mark.parametrize("name", names("gpus"))
def test_peaks_of_a_gpu_keep_their_order(name: str) -> None:
    gpu: Any = load_spec(find_spec("gpus", name), Gpu)
    peaks = [gpu.peak_flops[d] for d in ("fp32", "tf32", "fp16", "bf16", "fp8", "fp4") if d in gpu.peak_flops]
    assert sorted(peaks) == peaks
    assert 1e12 < peaks[0] <= peaks[-1] < 1e17
    assert 1e11 < gpu.memory_bandwidth < 1e13
    assert 2**30 < gpu.memory < 2**39


@pytest.mark.parametrize(
    "name", [name for name in names("models") if "parameters_published" in read_toml(find_spec("models", name))]
)
def test_a_models_parameters_are_those_published(name: str) -> None:
    """Within one percent; of counts that are rounded names the file says so, and what its shape counts."""
    model = load_spec(find_spec("models", name), Model)
    published = model.parameters_published or 0.0
    rounded = re.search(
        r"The count printed is a rounded one \((\S+ [MB])\); this shape counts (\S+ [MB])\.", model.notes or ""
    )
    if rounded is None:
        assert published == pytest.approx(model.parameters, rel=0.01)
        return
    printed, counted = (
        number * {"M": 1e6, "B": 1e9}[unit] for number, unit in ((float(w[:-2]), w[-1]) for w in rounded.groups())
    )
    assert published == printed
    assert counted == pytest.approx(model.parameters, rel=0.005)
    assert 0.01 < abs(model.parameters / published - 1.0) < 0.04, "leave the note out, or look at the shape"
