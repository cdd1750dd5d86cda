"""What libraries ask of a tensor's data, or whether it has any, and would go another way without: answered as on a GPU.

transformers looks whether the places of tokens jump (several sequences behind each other) and whether tokens are masked out (padding);
where neither is so, attention gets no mask and takes groups of heads as they are.  Of tensors without data it would take both for so.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

__all__ = ["Libraries"]

_WHOLE = "batches of transformers are taken to be one whole sequence each: neither several behind each other nor padded"


class Libraries:
    """Answers for libraries that a script has imported.

    Args:
        assume: notes an assumption.
    """

    def __init__(self, assume: Callable[[str], None]) -> None:
        self._assume = assume
        self._known: set[str] = set()

    def answer(self) -> None:
        """Answer for what has been imported since the last time."""
        masks = sys.modules.get("transformers.masking_utils")
        if masks is not None and masks.__name__ not in self._known:
            self._known.add(masks.__name__)
            self._masks(masks)

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
