"""What stands around the optimizer of a rank where replicas exchange more than gradients (`plan.gradient_exchange`).

An exchange that overlaps sends what it has to say beside a whole step, on a stream of its own, and the update of that step waits for it.
"""

from __future__ import annotations

import functools

import numpy as np

from simulator.lowering.exchanges.base import GradientExchange, Part, StepKind, Terms
from simulator.lowering.layers.holdings import Matrix
from simulator.lowering.layers.rows import Rows
from simulator.lowering.resolve.resolved_plan import ResolvedPlan
from simulator.lowering.steps.assign import Chunk
from simulator.lowering.steps.hops import BESIDE_LANE
from simulator.lowering.steps.orthogonal import matrices_of
from simulator.lowering.steps.parameters import Held, Matrices, all_alike, rank_held, table_copies, table_size
from simulator.lowering.steps.state import State
from simulator.lowering.steps.structure import Structure
from simulator.program.program import COLLECTIVE, Link, Pieces

__all__ = ["add_exchange_beside", "exchange_pieces", "exchanged_matrices", "kept_for_exchange"]


def exchanged_matrices(state: State, chunks: tuple[Chunk, ...]) -> Matrices:
    """Return the matrices of some chunks, tables of the vocabulary among them, where what replicas send depends on their shapes."""
    if not state.resolved.exchange.by_matrix:
        return ()
    kinds = tuple(kind for chunk in chunks for kind in chunk.kinds)
    tables = len(set(table_copies(kinds, state.workload.model.tied_embeddings)))
    hidden = state.workload.model.hidden
    table = Matrix(1, round(table_size(state) / hidden), hidden, experts=False)
    return (*matrices_of(state, chunks), *([(table, tables)] if tables else []))


def exchange_pieces(held: Held, resolved: ResolvedPlan, matrices: Matrices) -> tuple[Pieces, Pieces]:
    """Return (operators, how often) before and behind the optimizer, in the plan's kind of step."""
    if not resolved.step_kind.exchanges:
        return (), ()
    parts = held.exchanged(resolved, matrices)
    return _made(resolved.exchange, resolved.step_kind, parts, resolved.exchange_terms)[:2]


@functools.lru_cache(maxsize=1024)
def _made(
    exchange: GradientExchange, kind: StepKind, parts: tuple[Part, ...], terms: Terms
) -> tuple[Pieces, Pieces, tuple[Link, ...]]:
    """As `exchange_pieces`, of a kind of step in which something is exchanged, and what goes beside the step."""
    before, behind = Rows("exchange before the update"), Rows("exchange behind the update")
    for part in parts:
        exchange.before(before, kind, part, terms)
        exchange.behind(behind, kind, part, terms)
    links: tuple[Link, ...] = ()
    if exchange.overlaps:
        sent = [row for row in behind.rows if row.kind == COLLECTIVE]
        behind.rows = [row for row in behind.rows if row.kind != COLLECTIVE]
        links = tuple(
            Link(
                name=row.label,
                message=row.message,
                dtype=row.dtype,
                group=row.group,
                collective=row.work,
            )
            for row in sent
        )
    first, second = (((rows.table(), 1),) if rows.rows else () for rows in (before, behind))
    return first, second, links


def add_exchange_beside(state: State) -> None:
    """Add what an exchange that overlaps sends beside the step."""
    resolved, first = state.resolved, all_alike(state)
    if not (resolved.exchange.overlaps and resolved.step_kind.exchanges):
        return
    facts = resolved.exchange, resolved.step_kind
    links = {
        rank: _made(*facts, rank_held(state, rank).exchanged(resolved), resolved.exchange_terms)[2]
        for rank in dict.fromkeys(first)
    }
    if any(links.values()):
        items = {rank: tuple(state.add_item(link) for link in mine) for rank, mine in links.items()}
        state.build(_add_beside, tuple(items[rank] for rank in first))


def _add_beside(rows: Structure, items: tuple[tuple[int, ...], ...]) -> None:
    """Add the links of every rank, one after the other; they wait for nothing."""
    rank = np.repeat(np.arange(rows.ranks), [len(mine) for mine in items])
    numbers = np.array([item for mine in items for item in mine], np.int64)
    rows.on_lane(BESIDE_LANE, numbers, rank)


def kept_for_exchange(held: Held, resolved: ResolvedPlan) -> float:
    """Bytes that a GPU keeps from step to step for its exchange."""
    if type(resolved.exchange).state is GradientExchange.state:
        return 0.0  # as most: nobody asks what is exchanged
    return sum(resolved.exchange.state(part, resolved.exchange_terms) for part in held.exchanged(resolved))
