"""What every gradient exchange must keep, ours and other people's: its kinds of steps, and what it sends and keeps in each.

`ExchangeContract(exchange).check_all()` raises an AssertionError that names the broken promise.
"""

from __future__ import annotations

import math
from dataclasses import replace

from simulator.collectives.base import KINDS
from simulator.lowering.exchanges.base import GradientExchange, Part, StepKind, Terms
from simulator.lowering.layers.rows import Rows
from simulator.plan.plan import Plan
from simulator.program.program import COLLECTIVE, OperatorTable
from simulator.testing.member_contract import MemberContract
from simulator.units import BYTES_PER_ELEMENT
from simulator.workload.optimizers import optimizer_cost

__all__ = ["ExchangeContract"]

_PART = Part(weights=2.0**20, group=("dp",), ranks=8, matrices=((7, 256, 256),))
_TERMS = (
    Terms(),
    Terms(every=4, warmup=0.25),
    Terms(every=4, bits=4),
    Terms(updated=2.0, updated_dtype="bf16", rewritten=0.0),
)


class ExchangeContract(MemberContract[GradientExchange]):
    """The promises of one exchange."""

    what = "gradient exchange"

    def check_all(self) -> None:
        """Check every promise below.

        Raises:
            AssertionError: one is broken.
        """
        self.check_identity()
        for terms in _TERMS:
            self.check_kinds(terms)
            self.check_rows(terms)

    def check_identity(self) -> None:
        """Check that the name is the file's, that it says its source and what it leaves unsaid, and that its options are a plan's.

        Raises:
            AssertionError: one is missing or wrong.
        """
        member = self.member
        self.check_named()
        self._require(member.usual or bool(member.unsaid.strip()), "it says what a prediction does not tell of it")
        for option in member.options:
            self._require(option in Plan.model_fields, f"its option {option!r} is a choice of a plan")

    def check_kinds(self, terms: Terms) -> None:
        """Check that shares of kinds add up to 1, and that the first sends no more than the others.

        Raises:
            AssertionError: they do not.
        """
        kinds = self.member.step_kinds(terms)
        self._require(math.isclose(sum(kind.share for kind in kinds), 1.0), f"shares of its kinds add up to 1: {kinds}")
        self._require(all(kind.share > 0.0 for kind in kinds), f"every kind of step occurs: {kinds}")
        self._require(len({kind.name for kind in kinds}) == len(kinds), f"every kind has a name of its own: {kinds}")
        sent = [self._sent(kind, terms) for kind in kinds]
        self._require(sent[0] == min(sent), "the kind of step with least to send comes first")
        self._require(any(sent), "in some step something is sent")

    def check_rows(self, terms: Terms) -> None:
        """Check kernels and collectives: finite, over the group's axes, more of them for more weights, none of a usual exchange.

        Raises:
            AssertionError: they are not so.
        """
        kept = self.member.state(_PART, terms)
        self._require(math.isfinite(kept) and kept >= 0.0, f"it keeps a finite number of bytes: {kept}")
        for kind in self.member.step_kinds(terms):
            tables = self._tables(kind, _PART, terms)
            small = self._tables(kind, replace(_PART, weights=_PART.weights / 2), terms)
            for table, half in zip(tables, small, strict=True):
                columns = (table.read, table.written, table.message, table.flops)
                finite = all((column >= 0.0).all() and math.isfinite(column.sum()) for column in columns)
                self._require(finite, f"bytes and FLOP of {table.name} are finite and not negative")
                self._require(bool(table.read.sum() >= half.read.sum()), "more weights take no less")
                sends = [row for row in range(len(table.work)) if table.kind[row] == COLLECTIVE]
                for word, known in ((table.work, KINDS), (table.dtype, BYTES_PER_ELEMENT)):
                    unknown = {word[row] for row in sends} - set(known)
                    self._require(not unknown, f"it sends by {', '.join(sorted(unknown))}; known: {', '.join(known)}")
                groups = {table.group[row] for row in sends}
                self._require(groups <= {_PART.group}, f"collectives are among the ranks of the group: {groups}")
            there = any(len(table.work) for table in tables)
            self._require(there == kind.exchanges, f"a step in which something is exchanged has rows for it: {kind}")
            self._require(not (there and self.member.usual), "a usual exchange adds nothing to an update")
            for name in self.member.optimizers or ("adam",):
                cost = self.member.update(kind, optimizer_cost(name, 2, 4, True), terms)
                self._require(
                    min(cost.read, cost.written) >= 0.0, f"an update moves bytes, not fewer than none: {cost}"
                )

    def _tables(self, kind: StepKind, part: Part, terms: Terms) -> tuple[OperatorTable, OperatorTable]:
        before, behind = Rows("before"), Rows("behind")
        if kind.exchanges:
            self.member.before(before, kind, part, terms)
            self.member.behind(behind, kind, part, terms)
        return before.table(), behind.table()

    def _sent(self, kind: StepKind, terms: Terms) -> float:
        """Bytes that a rank hands over in a step: of an all_reduce twice its message."""
        sent = 2.0 * _PART.weights * (terms.gradient * kind.adds + terms.updated * self.member.waves)
        for table in self._tables(kind, _PART, terms):
            for work, message in zip(table.work, table.message.tolist(), strict=True):
                sent += message * (2.0 if work == "all_reduce" else 1.0)
        return sent
