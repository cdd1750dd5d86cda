"""Objects that ranks of a script send each other while it starts, such as the shapes of what a pipeline's stages pass on.

Tensors have no data while a script is recorded, but what it says to another rank in objects of Python must arrive, so ranks that are
recorded side by side pass it on as files.  These are written and read by the same script, in a folder that nobody else knows.
"""

from __future__ import annotations

import os
import pickle
import time
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Any

__all__ = ["Alone", "Letters"]

_LOOK = 0.01
"""Seconds between looks for a letter."""


class Alone(BaseException):
    """A rank that nobody records is to send or take objects; carries the ranks of their group."""

    def __init__(self, ranks: tuple[int, ...]) -> None:
        super().__init__(ranks)
        self.ranks = ranks


class Letters:
    """Stands in for torch.distributed's `send_object_list` and `recv_object_list`.

    Args:
        folder: through which ranks pass objects.
        rank: whose.
        ranks: that are recorded side by side.
    """

    def __init__(self, folder: str, rank: int, ranks: Collection[int]) -> None:
        self._folder, self._rank, self._ranks = folder, rank, ranks
        self._count: Counter[tuple[int, int]] = Counter()

    def replace(self, distributed: Any) -> None:
        """Put the stand-ins in place."""
        for module in (distributed, distributed.distributed_c10d):
            module.send_object_list, module.recv_object_list = self.send, self.receive

    def send(self, objects: list[Any], dst: int | None = None, group: Any = None, *rest: Any, **options: Any) -> None:
        """Pass objects on to another rank."""
        path = self._path(self._rank, _world_rank(dst, group, options.get("group_dst")), group)
        draft = path.with_suffix(".draft")
        draft.write_bytes(pickle.dumps(objects))
        os.replace(draft, path)

    def receive(self, objects: list[Any], src: int | None = None, group: Any = None, *rest: Any, **options: Any) -> int:
        """Wait for objects of another rank, and put them into the list."""
        sender = _world_rank(src, group, options.get("group_src"))
        path = self._path(sender, self._rank, group)
        while not path.exists():
            time.sleep(_LOOK)
        objects[:] = pickle.loads(path.read_bytes())
        return sender

    def _path(self, sender: int, receiver: int, group: Any) -> Path:
        if not {sender, receiver} <= set(self._ranks):
            import torch.distributed as dist

            raise Alone(tuple(dist.get_process_group_ranks(group)))
        self._count[(sender, receiver)] += 1
        return Path(self._folder, f"{sender}-{receiver}-{self._count[(sender, receiver)]}.letter")


def _world_rank(rank: int | None, group: Any, within: int | None) -> int:
    import torch.distributed as dist

    if rank is not None:
        return rank
    return int(dist.get_global_rank(group or dist.group.WORLD, within or 0))
