"""Exchanges of experts' rows inside one domain beside published times of DeepEP's and HybridEP's kernels."""

from __future__ import annotations

import csv
import statistics
from collections import defaultdict
from pathlib import Path

from simulator.costs.expert_exchange import once_per_node
from simulator.costs.tables import machine_of
from simulator.hardware.cluster import load_cluster
from simulator.hardware.fabric import fabric_of
from simulator.hardware.group_placement import place_group
from simulator.program.calls import NodeExchange

TABLE = Path(__file__).parents[1] / "data" / "exchange_measurements.csv"
CLUSTERS = {
    "h100_80gb_sxm": "dgx_h100",
    "h200_141gb_sxm": "hgx_h200",
    "b200_sxm": "hgx_b200",
    "b300_sxm": "hgx_b300",
    "gb200": "gb200_nvl72",
}
WIDE = 8000.0
"""Bytes from which on rows are wide."""


def errors() -> dict[tuple[str, str, str, str], list[float]]:
    """Relative errors by library, kind of GPU, width of rows and direction."""
    found: dict[tuple[str, str, str, str], list[float]] = defaultdict(list)
    with TABLE.open(newline="") as lines:
        for row in csv.DictReader(line for line in lines if not line.startswith("#")):
            machine = machine_of(load_cluster(CLUSTERS[row["gpu"]]))
            width, copies, tokens = int(row["row_bytes"]), int(row["experts_per_token"]), int(row["tokens"])
            moved = "copied" if row["library"] == "DeepEP" else "fetched" if row["direction"] == "combine" else "sent"
            call = NodeExchange(copies, 1.0, width, int(row["multiprocessors"]), moved)
            place = place_group((("ep", int(row["ranks"])),), ("ep",), machine.cluster)
            time = once_per_node(
                float(copies * tokens * width), call, place, fabric_of(machine.cluster), machine.memory_bound
            )
            kind = "Hopper" if row["gpu"].startswith("h") else "Blackwell"
            key = row["library"], kind, "wide" if width > WIDE else "narrow", row["direction"]
            found[key].append(time.seconds / (1e-6 * float(row["time_us"])) - 1.0)
    return dict(found)


def test_exchanges_take_as_long_as_published() -> None:
    """DeepEP's within a fifth, HybridEP's within a fifth in the median of each kind."""
    found = {key: (min(e), statistics.median(e), max(e)) for key, e in errors().items()}
    for (library, kind, width, way), (low, middle, high) in sorted(found.items()):
        print(f"{library} {kind} {width} {way}: {low:+.2f} {middle:+.2f} {high:+.2f}")
    assert all(low > -0.22 and high < 0.12 for k, (low, _, high) in found.items() if k[0] == "DeepEP")
    assert all(abs(middle) < 0.2 for (library, *_), (_, middle, _) in found.items() if library == "HybridEP")
