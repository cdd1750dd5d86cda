"""Pass 4: transfers between chunks on different pipeline ranks (design 5b D).

A message holds one stream per neighbour and direction on both sides, so a send never queues behind a receive.  With p2p =
"blocking" it also holds the compute: it waits for what its receiver does before, and its sender goes on only after it; with
several chunks per rank receives are posted ahead and only the sender waits.

With R `registers` a rank has R buffers for what goes to a neighbour, and R for what comes: an actor of OneFlow makes its next output when
its consumer has done with the one R before (Yuan et al., arXiv 2110.15032).  The compute makes what the message takes, and the message what
the receiver's compute takes:

    compute k + R waits for message k                message k + R waits for the receiver's compute k
"""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

from simulator.errors import PlanError, refuse
from simulator.lowering.steps.state import State
from simulator.lowering.steps.structure import Batch, Structure
from simulator.program.program import TRANSFER, Link
from simulator.program.ragged import ranges

__all__ = ["add_transfers", "message_links"]

Ints = NDArray[np.int64]


def add_transfers(state: State) -> None:
    """Add a transfer row wherever a chunk's neighbour lies on another rank, and the waits that follow from data flow.

    Raises:
        PlanError: messages block, and the schedule's ranks would wait for each other for ever.
    """
    first = len(state.items)
    blocking, registers = state.resolved.p2p == "blocking", state.resolved.registers
    for link in message_links(state):
        state.add_item(link)
    if not state.build(_transfer, first, blocking, registers, state.boundaries):
        resolved = state.resolved
        if registers:
            refuse(
                "a rank goes on when one of its registers is free, and every rank in a ring may wait for another to free one",
                f"schedule = {resolved.schedule.name!r} at {resolved.shape} with registers = {registers}",
                f"registers = {registers + 1} or more, or schedule = 'one_f_one_b'",
            )
        raise PlanError(
            "with blocking messages a rank goes on only when its neighbour has come to take what it sends, but under schedule "
            f"{resolved.schedule.name!r} at {resolved.shape} ranks then wait for each other in a ring (p2p = 'blocking'). Way out: "
            "p2p = 'latency' (receives are posted ahead), or schedule = 'one_f_one_b'."
        )


def message_links(state: State) -> tuple[Link, ...]:
    """Return what one message takes, for each of the pattern's links."""
    resolved = state.resolved
    boundaries = state.boundaries
    if boundaries:
        sizes = tuple(_message(state, state.costs[chunk.kinds[0]].input_bytes) for chunk in state.chunks)
    else:
        largest = max((c.input_bytes for k, c in state.costs.items() if k != "embedding"), default=0.0)
        sizes = (_message(state, largest),)
    links = state.pattern.messages(boundaries).links
    return _links(links, sizes, resolved.precision.compute, resolved.p2p == "blocking")


@functools.lru_cache(maxsize=1024)
def _links(
    pattern: tuple[tuple[int, int, float, int], ...], sizes: tuple[float, ...], dtype: str, blocks: bool
) -> tuple[Link, ...]:
    return tuple(
        [
            Link(
                name=f"activations {a} to {b}" if a < b else f"gradients {a} to {b}",
                kind=TRANSFER,
                message=sizes[boundary] * fraction,
                dtype=dtype,
                group=("pp",),
                pipeline_ranks=(a, b),
                account="pp",
                blocks=blocks,
            )
            for a, b, fraction, boundary in pattern
        ]
    )


def _message(state: State, activation: float) -> float:
    """Bytes per GPU: tensor-parallel ranks share the sending when activations are split, or the framework scatters them."""
    resolved = state.resolved
    if not resolved.divides_stream and resolved.framework.scatters_p2p:
        return activation / resolved.tensor_parallel
    return activation


def _transfer(rows: Structure, first: int, blocking: bool, registers: int, boundaries: tuple[int, ...]) -> bool:
    """Add the rows of messages, whose links are the items from `first` on, and what waits for them; returns whether every action gets
    its turn."""
    messages = rows.pattern.messages(boundaries)
    rows.wait(rows.first_row[messages.local_target], rows.last_row[messages.local_source])
    source, target = messages.source, messages.target
    if not len(source):
        return True
    streams = [(rows.stream(a, f"pp>{b}"), rows.stream(b, f"pp<{a}")) for a, b, *_ in messages.links]
    microbatch = rows.order.microbatch[source]
    sent = rows.add_rows(
        Batch(
            item=first + messages.link,
            kind=TRANSFER,
            rank=rows.pattern.rank[source],
            streams=np.array(streams)[messages.link],
            chunk=rows.order.chunk[source],
            microbatch=microbatch,
            step=rows.step_of(microbatch),
        )
    )
    rows.wait(sent, rows.last_row[source])
    rows.wait(rows.first_row[target], sent)
    if registers:
        return _register(rows, registers, sent, source, target)
    return not blocking or _block(rows, sent, source, target)


def _register(rows: Structure, registers: int, sent: Ints, source: Ints, target: Ints) -> bool:
    """What would fill one register more waits until one is free; returns whether every action gets its turn."""
    rank = rows.pattern.rank
    link = rank[source] * rows.ranks + rank[target]
    queue = np.lexsort((np.arange(len(sent)), link))
    held = max(0, len(queue) - registers)
    alike = np.flatnonzero(link[queue[registers:]] == link[queue[:held]])
    one, more = queue[alike], queue[alike + registers]
    if not _all_meet(rows, (source, target), (one, source[more]), (target[one], more)):
        return False
    rows.wait(rows.first_row[source[more]], sent[one])
    rows.wait(sent[more], rows.last_row[target[one]])
    return True


def _block(rows: Structure, sent: Ints, source: Ints, target: Ints) -> bool:
    """A blocking message holds its sender and, with one chunk per rank and lane, waits for its receiver; returns whether every action
    gets its turn."""
    offsets, pair, rank = rows.order.rank_offsets, rows.order.pair, rows.pattern.rank
    after = source + 1
    after += pair[source] == after  # a fused pair runs as one: the next is behind both
    held = np.flatnonzero(after < offsets[rank[source] + 1])
    before = target - 1
    before -= pair[target] == before
    met = np.flatnonzero(before >= offsets[rank[target]])
    if rows.placement.chunks != rows.ranks:
        met = met[:0]
    elif not _all_meet(rows, (source, target), (held, after[held]), (before[met], met)):
        return False
    rows.wait(rows.first_row[after[held]], sent[held])
    rows.wait(sent[met], rows.last_row[before[met]])
    return True


def _all_meet(rows: Structure, sent: tuple[Ints, Ints], held: tuple[Ints, Ints], met: tuple[Ints, Ints]) -> bool:
    """Whether every action gets its turn.

    Args:
        sent: per message, the action that sends and the one that waits for it.
        held: (message, action that waits for it behind its sender).
        met: (action before its receiver, message that waits for it).
    """
    pair, rank = rows.order.pair.astype(np.int64), rows.pattern.rank
    count, messages = len(pair), len(sent[0])
    whole = np.arange(count + messages)
    whole[:count][(pair >= 0) & (pair < np.arange(count))] -= 1  # both of a fused pair are one
    here = np.flatnonzero(rank[1:] == rank[:-1])
    message = count + np.arange(messages)
    link = rank[sent[0]] * rows.ranks + rank[sent[1]]
    queue = np.argsort(link, kind="stable")
    behind = np.flatnonzero(link[queue[1:]] == link[queue[:-1]])
    first = np.concatenate([here, sent[0], message, count + held[0], met[0], message[queue[behind]]])
    then = np.concatenate([here + 1, message, sent[1], held[1], count + met[1], message[queue[behind + 1]]])
    first, then = whole[first], whole[then]
    first, then = first[first != then], then[first != then]
    by_first = np.argsort(first, kind="stable")
    then, edges = then[by_first], np.searchsorted(first[by_first], np.arange(count + messages + 1))
    waits = np.bincount(then, minlength=count + messages)
    ready = np.flatnonzero((waits == 0) & (whole == np.arange(count + messages)))
    done = len(whole) - len(np.unique(whole))
    while len(ready):
        done += len(ready)
        each = edges[ready + 1] - edges[ready]
        freed, times = np.unique(then[ranges(edges[ready], each)], return_counts=True)
        waits[freed] -= times
        ready = freed[waits[freed] == 0]
    return done == len(whole)
