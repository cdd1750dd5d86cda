"""The matrix that `nvidia-smi topo -m` prints: how many GPUs, NVLinks and cards a machine has, and how near they are.

Cells (legend of the tool itself): X itself, NV# so many NVLinks, PIX one PCIe switch, PXB several, PHB a host bridge, NODE between host
bridges of one NUMA node, SYS across sockets.  The kind of GPU is not said, so no data file follows: only how many there are.
"""

from __future__ import annotations

import re
from collections import Counter

from simulator.errors import SpecError
from simulator.importers.base import Importer
from simulator.importers.document import MOST_TREE, Document
from simulator.importers.imported import Findings

__all__ = ["TopologyMatrix"]

_CELL = re.compile(r"X|NV[0-9]{1,3}|PIX|PXB|PHB|NODE|SYS|SOC")
_NAME = re.compile(r"(GPU|NIC|mlx[0-9]_|bond_?|roce|rdma|ib)\w*")
_ESCAPES = re.compile(r"\x1b\[[0-9;]{0,12}m")
_LEGEND = re.compile(r"\s*(NIC )?Legend:|\s+(X|SYS|NODE|PHB|PXB|PIX|NV#|SOC)\s+=|\s*NIC[0-9]+:")


class TopologyMatrix(Importer):
    """Output of nvidia-smi topo -m."""

    name = "nvidia_smi_topo"
    title = "nvidia-smi topo -m"
    aliases = ("topo",)

    def recognises(self, document: Document) -> int:
        """Look for a row of GPU0 that begins with itself."""
        plain = _ESCAPES.sub("", document.head)
        return 3 if document.form == "text" and re.search(r"^GPU0\s+X\b", plain, re.MULTILINE) else 0

    def read(self, document: Document) -> Findings:
        """Return how many GPUs, NVLinks and cards there are.

        Raises:
            SpecError: a row is shorter than the matrix, or has another cell.
        """
        if len(document.data) > MOST_TREE:
            raise SpecError(f"{document.place}: is larger than 1 MiB; expected the output of nvidia-smi topo -m")
        findings = Findings(self.name)
        rows: dict[str, list[str]] = {}
        lines: dict[str, int] = {}
        for number, raw in enumerate(_ESCAPES.sub("", document.text).split("\n"), 1):
            words = raw.split()
            if words and _NAME.fullmatch(words[0]) and len(words) > 1 and _CELL.fullmatch(words[1]):
                rows[words[0]], lines[words[0]] = words[1:], number
            elif words and not _LEGEND.match(raw) and not (words[0] == "GPU0" or "Affinity" in raw):
                findings.skip(document.line_of(number), raw)
        if "GPU0" not in rows:
            raise SpecError(f"{document.place}: expected a matrix with a row of GPU0")
        for name, words in rows.items():
            cells = words[: len(rows)]
            if len(cells) < len(rows) or not all(_CELL.fullmatch(cell) for cell in cells):
                raise SpecError(
                    f"{document.line_of(lines[name])}: {name}: expected {len(rows)} cells such as NV18, PIX or SYS"
                )
        _report(rows, lines, document, findings)
        return findings


def _report(rows: dict[str, list[str]], lines: dict[str, int], document: Document, findings: Findings) -> None:
    names = list(rows)
    gpus = [name for name in names if name.startswith("GPU")]
    place = document.line_of(lines[gpus[0]])
    findings.put("cluster.gpus", len(gpus), f"{place}: rows of GPUs, one machine")
    findings.put("node.gpus", len(gpus), place)
    findings.put("node.nics", len(names) - len(gpus), place)
    pairs = Counter(rows[a][names.index(b)] for a in gpus for b in gpus if a != b)
    links = {cell: int(cell[2:]) for cell in pairs if cell.startswith("NV")}
    if links and len(pairs) == 1:
        findings.put("node.nvlinks", next(iter(links.values())), f"{place}: between any two GPUs, by a switch")
    else:
        for cell, count in pairs.items():
            findings.put(f"node.pairs_{cell}", count // 2, f"{place}: pairs of GPUs joined so")
    near = Counter(rows[gpu][i] for gpu in gpus for i, name in enumerate(names) if name not in gpus)
    for cell, count in near.items():
        findings.put(f"node.cards_{cell}", count, f"{place}: GPU and card joined so")
