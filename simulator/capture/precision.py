"""Mixed precision that a script asks of a GPU by name (`torch.autocast("cuda")`, `GradScaler`): PyTorch leaves it out where there is none.

Here it is that of a CPU, in the number format that a GPU would take; and no gradient is infinite.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

__all__ = ["mix_precision"]


def mix_precision(wait: Callable[[object], None]) -> None:
    """Put the stand-ins in place.

    Args:
        wait: notes that the host waits for a tensor.
    """
    import torch

    autocast, scaler = torch.amp.autocast_mode.autocast, torch.amp.grad_scaler.GradScaler
    enter, begin = autocast.__init__, scaler.__init__

    @functools.wraps(enter)
    def entered(mine: object, device_type: str, dtype: object = None, *arguments: object, **options: object) -> None:
        format = dtype or torch.get_autocast_dtype(device_type)
        enter(mine, "cpu" if device_type == "cuda" else device_type, format, *arguments, **options)

    @functools.wraps(begin)
    def begun(mine: object, device: str = "cuda", *arguments: object, **options: object) -> None:
        begin(mine, "cpu" if device == "cuda" else device, *arguments, **options)

    def stepped(mine: Any, optimizer: Any, state: dict[str, Any], *arguments: Any, **options: Any) -> Any:
        for found in state["found_inf_per_device"].values():
            wait(found)
        return optimizer.step(*arguments, **options)

    autocast.__init__, scaler.__init__, scaler._maybe_opt_step = entered, begun, stepped
