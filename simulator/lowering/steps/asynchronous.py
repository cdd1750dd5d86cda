"""Pass 7 where no step ends with a flush (PipeDream, 2BW): every rank changes its weights on its own, amid its actions.

    rank's compute   ... F5  B2  update  F6  B3  update ...      PipeDream: after every backward; 2BW: after every m-th
    its dp lane              reduce   gather                     between B2 and its update, and after it (ZeRO-1 and 2)

The gradients of replicas are added between the backward and the update; with ZeRO-2, which keeps no full gradients, after
every backward.  ZeRO-1 and 2 gather what they updated in shards before the rank goes on.  Nothing waits for other pipeline
ranks: tied embeddings add their gradients on a communicator of their own, and a later update takes the sum.
"""

from __future__ import annotations

import numpy as np

from simulator.lowering.steps.hops import links_of
from simulator.lowering.steps.parameters import rank_held
from simulator.lowering.steps.reduce import table_link
from simulator.lowering.steps.served import add_served
from simulator.lowering.steps.state import State
from simulator.lowering.steps.update import update_segments, weight_gathers
from simulator.lowering.steps.waves import add_waves

__all__ = ["add_updates"]


def add_updates(state: State) -> None:
    """Fill the rows kept for updates, and add the reductions before and the gathers after each."""
    if not len(state.updates):
        return
    updated = np.flatnonzero(state.updates)
    rows = state.last_row[updated] + 1
    items = np.array(update_segments(state))
    state.mine().run_items(rows, items[state.pattern.rank[updated]])
    resolved = state.resolved
    if resolved.on_servers:
        add_served(state)
    elif resolved.in_waves:
        add_waves(state)
    elif resolved.reduces:
        _add_links(state, updated)
    _add_shared(state, updated)


def _add_links(state: State, updated: np.ndarray) -> None:
    """Reductions and gathers of a rank share its dp lane in the order in which they are wanted."""
    stage = state.resolved.zero_stage
    completes = np.isin(state.order.kind, (1, 3))
    reduced = np.flatnonzero(completes) if stage == 2 else updated
    ranks = range(state.ranks)
    reductions = [[chain[0] for chain in links_of(state, f"gradients of rank {r}", rank_held(state, r))] for r in ranks]
    gathers = [weight_gathers(state, r) if stage in (1, 2) else [] for r in ranks]
    found = []
    for turn, actions, links in ((0, reduced, reductions), (1, updated, gathers)):
        of_action = [links[r] for r in state.pattern.rank[actions].tolist()]
        items = np.array([i for some in of_action for i in some], np.int64)
        again = np.repeat(actions, [len(some) for some in of_action])
        found.append((again, np.full(len(again), turn), items))
    joined = [np.concatenate(columns) for columns in zip(*found, strict=True)]
    by_action = np.lexsort((joined[1], joined[0]))
    action, late, item = (column[by_action] for column in joined)
    rank, structure = state.pattern.rank[action], state.mine()
    rows = structure.on_lane("dp", item, rank, step=structure.step_of(state.order.microbatch[action]))
    gathers_here = late == 1
    state.wait(rows[~gathers_here], state.last_row[action[~gathers_here]])
    before_update = ~gathers_here & state.updates[action]
    state.wait(state.last_row[action[before_update]] + 1, rows[before_update])
    state.wait(rows[gathers_here], state.last_row[action[gathers_here]] + 1)
    following = action + 1
    goes_on = gathers_here & (following < state.order.rank_offsets[rank + 1])
    state.wait(state.first_row[following[goes_on]], rows[goes_on])


def _add_shared(state: State, updated: np.ndarray) -> None:
    """One sum of a shared matrix's gradients per version, when both ends have theirs; no update waits for it."""
    shared = table_link(state)
    if shared is None:
        return
    item, ends = shared
    of_rank = [updated[state.pattern.rank[updated] == r] for r in ends]
    structure = state.mine()
    step = structure.step_of(state.order.microbatch[of_rank[0]])
    rows = structure.across("dp-tied", np.full(len(of_rank[0]), item), ends, step=step)
    for actions in of_rank:
        state.wait(rows, state.last_row[actions])
