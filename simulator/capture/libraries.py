"""What libraries ask of a GPU or of a tensor's data, and would go another way without: answered as on a GPU, as soon as they are imported.

transformers looks whether the places of tokens jump (several sequences behind each other) and whether tokens are masked out (padding);
where neither is so, attention gets no mask and takes groups of heads as they are.  Of tensors without data it would take both for so.
It also refuses to train in bf16 without a GPU.

accelerate makes copies on CPUs, whatever a script asks it to shard, and names the first of several CPUs.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

__all__ = ["Libraries"]

_WHOLE = "batches of transformers are taken to be one whole sequence each: neither several behind each other nor padded"


class Libraries(importlib.abc.MetaPathFinder):
    """Answers for libraries that a script imports.

    Args:
        assume: notes an assumption.
        world: ranks.
    """

    def __init__(self, assume: Callable[[str], None], world: int) -> None:
        self._assume, self._world = assume, world
        self._answers: dict[str, Callable[[Any], None]] = {
            "accelerate.state": self._ranks,
            "transformers.masking_utils": self._masks,
            "transformers.training_args": self._formats,
        }
        sys.meta_path.insert(0, self)

    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> Any:
        """Return how a module is made that is answered for; None of others."""
        spec = importlib.machinery.PathFinder.find_spec(name, path, target) if name in self._answers else None
        if spec is None or spec.loader is None:
            return None
        run, answer = spec.loader.exec_module, self._answers[name]

        def made(module: ModuleType) -> None:
            run(module)
            answer(module)

        spec.loader.exec_module = made  # type: ignore[method-assign]
        return spec

    def _ranks(self, state: Any) -> None:
        known, world = state.PartialState, self._world
        prepare = known._prepare_backend

        def prepared(mine: Any, *arguments: Any, **options: Any) -> Any:
            return ("gloo", state.DistributedType.MULTI_GPU) if world > 1 else prepare(mine, *arguments, **options)

        known._prepare_backend = prepared
        known.set_device = lambda mine: setattr(mine, "device", state.torch.device("cpu"))

    def _formats(self, arguments: Any) -> None:
        arguments.is_torch_bf16_gpu_available = lambda: True

    def _masks(self, masks: Any) -> None:
        asked = {
            name: getattr(masks, name) for name in ("find_packed_sequence_indices", "fast_all") if hasattr(masks, name)
        }

        def jumps(places: Any) -> None:
            """It looks at all of them, and the host waits for what it finds."""
            asked["find_packed_sequence_indices"](places)
            self._assume(_WHOLE)

        def all_seen(mask: Any) -> bool:
            bool(asked["fast_all"](mask))
            self._assume(_WHOLE)
            return True

        if "find_packed_sequence_indices" in asked:
            masks.find_packed_sequence_indices = jumps
        if "fast_all" in asked:
            masks.fast_all = all_seen
        if hasattr(masks, "is_tracing"):
            masks.is_tracing = lambda tensor=None: False
