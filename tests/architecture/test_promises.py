"""One new thing is one new small file: the examples of docs/extending.md, saved into a copy of the repository.

Each is one file more and no other file touched.  Its own check runs, then the tests that are made for every member of its kind;
with all of them in place, the whole quick suite.  A new kind of thing is one more entry of `PROMISES`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.package_sources import ROOT, page_files

KEPT = ("simulator", "tests", "hardware_specs", "workloads", "docs", "notebooks")
"""Folders that a copy has, beside the files of the root."""
DATA = ("tests/unit/test_data_files.py", "tests/architecture/test_sources.py")
"""Tests of every data file."""
PREDICTED = "llama3_8b_fsdp_8xh100"
FIGURES = f"""
import simulator
p = simulator.simulate_job(simulator.load_job({PREDICTED!r}))
print(repr(p.step_time), repr(p.low), repr(p.high), repr(p.peak_memory))
"""
"""Prints a shipped job's figures to the last digit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """A kind of thing that is one file.

    Args:
        example: the file as docs/extending.md names it.
        target: where it is saved.
        tests: files and folders with tests that are made for every member of the kind.
        needs: kinds whose example it builds upon.
        check: statements that hold once it is there.
    """

    example: str
    target: str
    tests: tuple[str, ...]
    check: str
    needs: tuple[str, ...] = ()


PROMISES = {
    "gpu": Promise(
        example="hardware_specs/gpus/imaginary_96gb.toml",
        target="hardware_specs/gpus/imaginary_96gb.toml",
        tests=DATA,
        check="""
from simulator.hardware.gpu import load_gpu
assert load_gpu("imaginary_96gb").memory == 96 * 2**30
""",
    ),
    "node": Promise(
        example="hardware_specs/nodes/imaginary_x8.toml",
        target="hardware_specs/nodes/imaginary_x8.toml",
        tests=DATA,
        needs=("gpu",),
        check="""
from simulator.hardware.cluster import load_node
assert load_node("imaginary_x8").gpus == 8
""",
    ),
    "cluster": Promise(
        example="hardware_specs/clusters/imaginary.toml",
        target="hardware_specs/clusters/imaginary.toml",
        tests=(
            *DATA,
            "tests/properties/test_collective_shapes.py",
        ),
        needs=("gpu", "node"),
        check="""
assert simulator.simulate_job(simulator.job_from_names("llama3_8b", "imaginary", ["plan.zero_stage=3"])).step_time > 0
""",
    ),
    "model": Promise(
        example="workloads/models/tiny.toml",
        target="workloads/models/tiny.toml",
        tests=(
            *DATA,
            "tests/unit/test_layer_kinds.py",
            "tests/properties/test_every_combination.py",
        ),
        check="""
assert simulator.simulate_job(simulator.job_from_names("tiny", "h100_x8")).step_time > 0
""",
    ),
    "job": Promise(
        example="workloads/jobs/tiny_on_imaginary.toml",
        target="workloads/jobs/tiny_on_imaginary.toml",
        tests=("tests/unit/test_jobs.py", "tests/replay", "tests/architecture/test_sources.py"),
        needs=("gpu", "node", "cluster", "model"),
        check="""
assert simulator.simulate_job(simulator.load_job("tiny_on_imaginary")).fits
""",
    ),
    "framework profile": Promise(
        example="hardware_specs/frameworks/our_megatron.toml",
        target="hardware_specs/frameworks/our_megatron.toml",
        tests=(
            "tests/unit/test_extends.py",
            "tests/architecture/test_sources.py",
            "tests/replay",
            "tests/golden/test_framework_profiles.py",
        ),
        check="""
from simulator.plan.framework import load_framework
assert (load_framework("our_megatron").gradient_dtype, load_framework("our_megatron").recompute) == ("bf16", "selective")
""",
    ),
    "schedule": Promise(
        example="one_at_a_time.py",
        target="simulator/schedules/one_at_a_time.py",
        tests=("tests/contracts", "tests/golden", "tests/differential", "tests/unit/test_schedule_product.py"),
        check="""
from simulator.schedules import SCHEDULES
from simulator.testing.schedule_contract import ScheduleContract
ScheduleContract(SCHEDULES.get("naive")).check_all()
settings = ["plan.chunks_per_rank=1", "plan.schedule="]
naive, gpipe = (simulator.simulate_job(simulator.load_job("gpt3_175b", [settings[0], settings[1] + name]))
                for name in ("one_at_a_time", "gpipe"))
assert naive.step_time > 4 * gpipe.step_time
""",
    ),
    "collective": Promise(
        example="flat.py",
        target="simulator/collectives/flat.py",
        tests=("tests/contracts", "tests/differential", "tests/unit/test_collective_algorithms.py"),
        check="""
from simulator.collectives import ALGORITHMS, collective_seconds
from simulator.hardware.group_placement import describe_group
from simulator.testing.collective_contract import CollectiveContract
flat, contract = ALGORITHMS.get("flat"), CollectiveContract()
for check in (contract.check_result, contract.check_time, contract.check_patterns, contract.check_cost, contract.check_source):
    check(flat)
two, cluster = describe_group(2), simulator.load_cluster("h100_x8")
assert collective_seconds("broadcast", 1024, two, cluster).algorithm != "flat"
assert collective_seconds("broadcast", 1024, two, cluster, "flat") != collective_seconds("broadcast", 1024, two, cluster)
""",
    ),
    "attention": Promise(
        example="shared_values.py",
        target="simulator/workload/blocks/attention/shared_values.py",
        tests=("tests/contracts",),
        check="""
from simulator.testing.block_contract import BlockContract, small_model
model = small_model(attention="shared_values")
BlockContract().check_all(model)
assert small_model().parameters - model.parameters == 2 * 4 * 8 * 64
""",
    ),
    "mixer": Promise(
        example="shift.py",
        target="simulator/workload/blocks/mixer/shift.py",
        tests=("tests/contracts",),
        check="""
from simulator.testing.block_contract import BlockContract, small_model
BlockContract().check_all(small_model(mixers=["shift", "full"]))
""",
    ),
    "layout": Promise(
        example="mlp_only.py",
        target="simulator/partition/strategies/mlp_only.py",
        tests=("tests/contracts",),
        check="""
from simulator.errors import LayoutError
from simulator.partition.strategies import STRATEGIES
from simulator.testing.strategy_contract import StrategyContract
StrategyContract(STRATEGIES.get("mlp_only")).check_all()
job, settings = "llama3_8b", ["plan.tensor_parallel=4", "plan.sequence_parallel=false"]
split, whole = (simulator.simulate_job(simulator.job_from_names(job, "dgx_h100", [*settings, "plan.layout=" + name]))
                for name in ("megatron", "mlp_only"))
assert whole.step_time > split.step_time and whole.peak_memory > split.peak_memory
try:
    simulator.simulate_job(simulator.job_from_names(job, "dgx_h100", [settings[0], "plan.sequence_parallel=true", "plan.layout=mlp_only"]))
except LayoutError as refusal:
    assert "sequence" in str(refusal) and "'attention'" in str(refusal)
else:
    raise AssertionError("a layout that leaves attention a part of its keys is taken")
""",
    ),
    "planner": Promise(
        example="longest_first.py",
        target="simulator/planners/longest_first.py",
        tests=("tests/contracts",),
        check="""
from simulator.planners import PLANNERS
from simulator.testing.planner_contract import PlannerContract
PlannerContract(PLANNERS.get("longest_first")).check_all()
""",
    ),
    "search strategy": Promise(
        example="every_nth.py",
        target="simulator/search/strategies/every_nth.py",
        tests=("tests/contracts",),
        check="""
from simulator.search.strategies import STRATEGIES
from simulator.testing.search_contract import SearchContract
SearchContract(STRATEGIES.get("every_nth")).check_all()
""",
    ),
    "optimizer": Promise(
        example="signum.py",
        target="simulator/workload/optimizers/signum.py",
        tests=("tests/contracts",),
        check="""
from simulator.testing.optimizer_contract import OptimizerContract, StateTensor
from simulator.workload.optimizers import OPTIMIZERS
OptimizerContract(OPTIMIZERS.get("signum")).check_all(
    lambda shape, width: [StateTensor(name="momentum", shape=shape, bytes=width)]
)
job = "gpt3_13b_2xdgx_a100"
signum, adam = (simulator.simulate_job(simulator.load_job(job, ["workload.optimizer=" + name])) for name in ("signum", "adam"))
assert signum.peak_memory < adam.peak_memory and signum.step_time <= adam.step_time
""",
    ),
    "exchange": Promise(
        example="largest_hundredth.py",
        target="simulator/lowering/exchanges/largest_hundredth.py",
        tests=("tests/contracts",),
        check="""
from simulator.lowering.exchanges import EXCHANGES
from simulator.testing.exchange_contract import ExchangeContract
ExchangeContract(EXCHANGES.get("largest_hundredth")).check_all()
job, dense = "gpt3_13b_2xdgx_a100", ["plan.zero_stage=0", "plan.framework=megatron_core"]
usual, sparse = (simulator.simulate_job(simulator.load_job(job, [*dense, "plan.gradient_exchange=" + name]))
                 for name in ("all_reduce", "largest_hundredth"))
assert sparse.peak_memory > usual.peak_memory and sparse.step_time != usual.step_time
""",
    ),
}


class Copy:
    """A copy of the repository, with Python in it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for folder in KEPT:
            shutil.copytree(ROOT / folder, root / folder, ignore=shutil.ignore_patterns("*.pyc", "_data"))
        for file in ROOT.iterdir():
            if file.is_file():
                shutil.copy2(file, root / file.name)
        self.before = self.files()
        self.predicted = self.python("-c", FIGURES)

    def files(self) -> dict[str, bytes]:
        """Return what stands in the copy, caches aside."""
        paths = {path.relative_to(self.root): path for path in self.root.rglob("*") if path.is_file()}
        kept = {name: path for name, path in paths.items() if not name.parts[0].startswith(".")}
        return {str(name): path.read_bytes() for name, path in kept.items() if "__pycache__" not in name.parts}

    def add(self, kind: str) -> None:
        """Save the example of a kind, and nothing else."""
        target = self.root / PROMISES[kind].target
        assert not target.exists()
        target.write_text(page_files(ROOT / "docs" / "extending.md")[PROMISES[kind].example])

    def python(self, *arguments: str) -> str:
        """Run Python in the copy; return what it printed."""
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=self.root,
            env=os.environ | {"PYTHONPATH": str(self.root)},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"{arguments}: {(done.stdout + done.stderr)[-6000:]}"
        return done.stdout

    def holds(self, kind: str) -> str:
        """Run a promise's own check, with the copy's package; return what a shipped job is then predicted to take."""
        where = "import simulator\nassert simulator.__file__.startswith({!r}), simulator.__file__\n"
        return self.python("-c", where.format(str(self.root)) + FIGURES + PROMISES[kind].check)


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    return Copy(tmp_path_factory.mktemp("copy"))


@pytest.fixture
def copy(copies: Copy) -> Iterator[Copy]:
    """The copy as it was, whatever a test before added."""
    yield copies
    for promise in PROMISES.values():
        (copies.root / promise.target).unlink(missing_ok=True)


@pytest.mark.slow
@pytest.mark.parametrize("kind", PROMISES)
def test_one_new_file_is_found_and_passes_what_is_made_for_its_kind(kind: str, copy: Copy) -> None:
    promise = PROMISES[kind]
    for needed in (*promise.needs, kind):
        copy.add(needed)

    assert copy.predicted == copy.holds(kind)
    copy.python("-m", "pytest", "-n", "0", "-p", "no:cacheprovider", "-k", Path(promise.target).stem, *promise.tests)

    added = {PROMISES[one].target for one in (*promise.needs, kind)}
    assert copy.before == {file: text for file, text in copy.files().items() if file not in added}


@pytest.mark.slow
def test_the_whole_quick_suite_passes_with_all_of_them(copy: Copy) -> None:
    for kind in PROMISES:
        copy.add(kind)

    copy.python("-m", "pytest", "-n", "2", "-p", "no:cacheprovider")


def test_every_example_file_of_the_page_is_a_promise() -> None:
    assert set(page_files(ROOT / "docs" / "extending.md")) == {promise.example for promise in PROMISES.values()}
