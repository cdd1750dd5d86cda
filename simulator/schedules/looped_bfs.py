"""Looped breadth-first as PyTorch runs it: the backwards of a chunk start with the newest microbatch."""

from __future__ import annotations

from simulator.schedules.breadth_first import BreadthFirst

__all__ = ["LoopedBFS"]


class LoopedBFS(BreadthFirst):
    """Breadth-first with every chunk drained newest microbatch first; times and peaks are those of breadth_first."""

    name = "looped_bfs"
    aliases = ()
    source = "PyTorch 2.13 torch.distributed.pipelining, ScheduleLoopedBFS"
    newest_first = True
