"""PyTorch's pipeline schedules as CSV: a row per rank, a cell per action (torch.distributed.pipelining, schedules.py).

The order itself is read, with all its rules, by `schedules.torch_csv`; here the file becomes the schedule of a plan.
"""

from __future__ import annotations

import re

from simulator.errors import ProgramError, SpecError
from simulator.importers.base import Importer
from simulator.importers.document import MOST_TREE, Document
from simulator.importers.imported import Findings
from simulator.schedules.torch_csv import read_order_file_text

__all__ = ["TorchCsv"]

_FIRST_CELL = re.compile(
    r"\s*(#[^\n]{0,200}\n\s*){0,9},{0,99}\(?[0-9]{1,6}(F|B|I|W|SEND_|RECV_|UNSHARD|RESHARD)[^\n=]{0,300}(\n|$)"
)


class TorchCsv(Importer):
    """A pipeline order, compute_only or compute_comms."""

    name = "torch_csv"
    title = "PyTorch pipeline schedule CSV"
    aliases = ("schedule_csv",)

    def recognises(self, document: Document) -> int:
        """Look for an action in the first cell."""
        return 3 if document.suffix == ".csv" and _FIRST_CELL.match(document.head) else 0

    def read(self, document: Document) -> Findings:
        """Return the schedule and the shape that it is for.

        Raises:
            SpecError: a cell is unknown, the order breaks a rule, or cannot run; the message says where.
        """
        if len(document.data) > MOST_TREE:
            raise SpecError(f"{document.place}: is larger than 1 MiB; expected a pipeline schedule")
        try:
            _, _, shape = read_order_file_text(document.text)
        except ProgramError as error:
            raise SpecError(f"{document.place}: {error}") from None
        findings = Findings(self.name)
        findings.put("plan.schedule", document.place, document.place)
        findings.put("plan.pipeline_parallel", shape.ranks, f"{document.place}: its rows")
        if shape.chunks_per_rank > 1:
            findings.put("plan.chunks_per_rank", shape.chunks_per_rank, f"{document.place}: stages of a rank")
        findings.per_replica = shape.microbatches
        findings.assume("plan.microbatch_size", 1, "an order counts microbatches, not their sequences")
        return findings
