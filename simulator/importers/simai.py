"""Workloads of SimAI and AICB: layers with compute times and collectives, as text for the simulator and as CSV for a cluster.

    HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 8 ep: 1 pp: 1 vpp: 40 ga: 2 all_gpus: 32 checkpoints: 0 ...
    82
    mlp_layer  -1  750000  ALLREDUCE  20971520  750000  ALLREDUCE  20971520  1  NONE  0  100

A row is a layer: forward, input gradient and weight gradient, each a compute time [ns], a collective and its bytes.  The first line of
ASTRA-sim 1's own workloads (DATA, MODEL, HYBRID_DATA_MODEL, MICRO, ...) has no numbers behind it.  Sizes are whole buffers, of an
all_gather too; here they become what a GPU brings, where the group's size is known.

Source: aliyun/aicb, workload_generator/SimAI_training_workload_generator.py and log_analyzer/log.py, and the workloads beside them.
"""

from __future__ import annotations

import re

from simulator.errors import SpecError
from simulator.hardware.cluster import MAX_WORLD_SIZE
from simulator.importers.base import Importer
from simulator.importers.document import Document
from simulator.importers.imported import Findings, brief
from simulator.importers.operations import Operations, Tally
from simulator.units import parse

__all__ = ["SimaiWorkload"]

_NANOSECOND = parse("1 ns", "s")
_POLICY = re.compile(
    r"(MICRO|DATA|MODEL|TRANSFORMER|HYBRID_[A-Za-z_]{4,40})\b[^\n]{0,2000}\n\s*[0-9]{1,9}\s*\n\S+[ \t]+-?[0-9]"
)
_PAIR = re.compile(r"([A-Za-z_]+):\s*(\S+)")
_KINDS = {
    "ALLREDUCE": "all_reduce", "ALLGATHER": "all_gather", "REDUCESCATTER": "reduce_scatter", "ALLTOALL": "all_to_all",
    "BROADCAST": "broadcast", "REDUCE": "reduce", "BARRIER": "barrier",
}  # fmt: skip
_PASSES = (("forward", 2, "tp"), ("input gradient", 5, "tp"), ("weight gradient", 8, "dp"))
"""Direction, its first column, and the group that joins in it where the collective names none."""
_GROUPS = {"EP": "ep", "DP_EP": "dp_ep", "TP": "tp", "DP": "dp", "PP": "pp"}
_FIELDS = {
    "model_parallel_NPU_group": "plan.tensor_parallel",
    "ep": "plan.expert_parallel",
    "expert_parallel_npu_group": "plan.expert_parallel",
    "pp": "plan.pipeline_parallel",
    "all_gpus": "cluster.gpus",
}
_OTHER = {
    "vpp": "AICB writes the layers of a pipeline rank here",
    "ga": "microbatches of a step; the file does not say of how many sequences",
    "pp_comm": "bytes of a message between pipeline ranks: microbatch x sequence x hidden size, together",
}
_COLUMNS = 12
_MOST_ROWS = 200_000


class SimaiWorkload(Importer):
    """A workload as SimAI and ASTRA-sim 1 read it."""

    name = "simai_workload"
    title = "SimAI or AICB workload (text)"
    aliases = ("aicb",)

    def recognises(self, document: Document) -> int:
        """Look for a policy, a number of rows, and a row."""
        return 3 if _POLICY.match(document.head.replace("\r", "")) else 0

    def read(self, document: Document) -> Findings:
        """Return the parallel sizes of its first line, and its operations.

        Raises:
            SpecError: a row has other columns, or fewer rows follow than were promised.
        """
        lines = document.text.splitlines()
        if len(lines) < 2 or not re.fullmatch(r"\s*[0-9]{1,9}\s*", lines[1]):
            raise SpecError(f"{document.place}: expected how many rows there are in line 2")
        findings = Findings(self.name)
        _header(document, findings, lines[0])
        sizes = _sizes(findings)
        promised, count = int(lines[1]), 0
        rows = _Rows(sizes)
        if promised > _MOST_ROWS:
            raise SpecError(f"{document.line_of(2)}: {promised:,} rows; at most {_MOST_ROWS:,} are read")
        for number, line in enumerate(lines[2:], 3):
            if not line.strip():
                continue
            count += 1
            if count > promised:
                findings.skip(document.line_of(number), line)
                continue
            rows.take(line.split(), document.line_of(number))
        if count < promised:
            findings.skip(document.line_of(2), f"{promised:,} rows are promised, but {count:,} follow")
        for group in sorted(rows.unsized):
            findings.skip(
                document.place, f"GPUs of a {group} group: not said, so bytes of an all_gather are its whole buffer"
            )
        _plan_of_collectives(document, findings, rows)
        findings.assumed_key(
            "compute times", "ns", f"{document.place}: as AICB writes them; 1 stands for nothing measured"
        )
        findings.operations = Operations(span="a step", rows=rows.tally.rows(), groups=sizes)
        return findings


def _header(document: Document, findings: Findings, line: str) -> None:
    place = document.line_of(1)
    for key, text in _PAIR.findall(line):
        if key in _FIELDS:
            if not re.fullmatch(r"[0-9]{1,9}", text) or not 0 < int(text) <= MAX_WORLD_SIZE:
                raise SpecError(
                    f"{place}: {key}: expected a whole number from 1 to {MAX_WORLD_SIZE:,}, got {brief(text)}"
                )
            findings.put(_FIELDS[key], int(text), f"{place}: {key}: {text}")
        elif key in ("checkpoints", "checkpoint_initiates") and text == "0":
            findings.ignore(place, f"{key}: {text}")
        else:
            findings.skip(place, f"{key}: {text}" + (f" ({_OTHER[key]})" if key in _OTHER else ""))
    if findings.get("plan.expert_parallel") == 1:
        findings.drop("plan.expert_parallel", "one rank holds all experts")


def _sizes(findings: Findings) -> dict[str, int]:
    """GPUs of a group, as far as the first line tells them."""
    tp, pp, ep = (findings.get(f"plan.{name}_parallel") for name in ("tensor", "pipeline", "expert"))
    world = findings.get("cluster.gpus")
    sizes = {name: size for name, size in (("tp", tp), ("ep", ep), ("pp", pp)) if size}
    if world and tp and world % (tp * (pp or 1)) == 0:
        sizes["dp"] = world // (tp * (pp or 1))
        if ep and sizes["dp"] % ep == 0:
            sizes["dp_ep"] = sizes["dp"] // ep
    return sizes


class _Rows:
    """Adds up layers.

    Args:
        sizes: GPUs of the groups that are known.
    """

    def __init__(self, sizes: dict[str, int]) -> None:
        self.tally, self.sizes = Tally(), sizes
        self.unsized: set[str] = set()
        self.used: set[tuple[str, str, str]] = set()
        """(direction, group, collective) that occur."""

    def take(self, words: list[str], place: str) -> None:
        """Add the three passes of a layer."""
        if len(words) < _COLUMNS:
            raise SpecError(
                f"{place}: expected {_COLUMNS} columns (name, -1, three times time, collective and bytes, and a time), "
                f"got {len(words)}"
            )
        for direction, first, usual in _PASSES:
            what = f"{brief(words[0])} ({direction})"
            seconds = _number(words[first], f"{place}: time of the {direction}") * _NANOSECOND
            if seconds > _NANOSECOND:
                self.tally.count("compute", what, seconds=seconds)
            moved = _number(words[first + 2], f"{place}: bytes of the {direction}")
            word, _, where = words[first + 1].partition("_")
            if word == "NONE" and not where:
                continue
            if word not in _KINDS or (where and where not in _GROUPS):
                known = ", ".join(_KINDS)
                raise SpecError(f"{place}: {brief(words[first + 1])}: is no collective that is known: {known}, NONE")
            alone = usual == "tp" and self.sizes.get("tp") == 1  # DeepSpeed's, where nothing is tensor-parallel
            group, kind = _GROUPS.get(where, "dp" if alone else usual), _KINDS[word]
            self.used.add((direction, group, kind))
            if kind == "all_gather":
                self.unsized |= {group} - set(self.sizes)
                moved /= self.sizes.get(group, 1)
            self.tally.count(kind, what, group=group, bytes=moved)


def _number(text: str, place: str) -> float:
    if not re.fullmatch(r"-?[0-9]{1,18}(\.[0-9]{1,9})?", text) or float(text) < 0:
        raise SpecError(f"{place}: expected a number from 0, got {brief(text)}")
    return float(text)


def _plan_of_collectives(document: Document, findings: Findings, rows: _Rows) -> None:
    """What the collectives tell of the plan: ZeRO, and sequence parallelism."""

    def both(direction: str, group: str) -> bool:
        return {(direction, group, "all_gather"), (direction, group, "reduce_scatter")} <= rows.used

    if findings.get("plan.tensor_parallel", 1) > 1 and both("forward", "tp"):
        why = f"{document.place}: tensor-parallel ranks gather and reduce-scatter activations"
        findings.assume("plan.sequence_parallel", True, why)
    if both("weight gradient", "dp"):
        why = f"{document.place}: gradients are reduce-scattered and parameters gathered, once per step"
        findings.assume("plan.zero_stage", 1, why)
