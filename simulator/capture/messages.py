"""Which operators of torch.distributed move bytes, and what of them is the message.

A message is the largest buffer of a rank, as in `simulator.collectives.base`.
"""

from __future__ import annotations

from collections.abc import Mapping

from simulator.capture.facts import tensors_in

__all__ = ["BARRIERS", "MADE", "MESSAGES", "SENT", "WAITS", "message_of"]

_FUNCTIONAL = {
    "all_reduce": "all_reduce",
    "all_reduce_": "all_reduce",
    "all_reduce_coalesced": "all_reduce",
    "all_reduce_coalesced_": "all_reduce",
    "all_gather_into_tensor": "all_gather",
    "all_gather_into_tensor_out": "all_gather",
    "all_gather_into_tensor_coalesced": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter",
    "reduce_scatter_tensor_out": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "all_to_all_single": "all_to_all",
    "broadcast": "broadcast",
    "broadcast_": "broadcast",
}
_PLAIN = {
    "allreduce_": "all_reduce",
    "allreduce_coalesced_": "all_reduce",
    "_allgather_base_": "all_gather",
    "allgather_": "all_gather",
    "allgather_coalesced_": "all_gather",
    "allgather_into_tensor_coalesced_": "all_gather",
    "_reduce_scatter_base_": "reduce_scatter",
    "reduce_scatter_": "reduce_scatter",
    "reduce_scatter_tensor_coalesced_": "reduce_scatter",
    "broadcast_": "broadcast",
    "reduce_": "reduce",
    "alltoall_base_": "all_to_all",
    "alltoall_": "all_to_all",
    "gather_": "gather",
    "scatter_": "scatter",
    "send": "send",
    "recv_": "recv",
    "recv_any_source_": "recv",
}
MESSAGES = {f"c10d.{name}": what for name, what in _PLAIN.items()} | {
    f"{space}.{name}": what
    for space in ("_c10d_functional", "_c10d_functional_autograd")
    for name, what in _FUNCTIONAL.items()
}
"""Operator -> the collective's name, or send and recv."""
WAITS = ("_c10d_functional.wait_tensor", "_c10d_functional_autograd.wait_tensor")
MADE = ("output_tensor", "output", "output_tensors", "outputs", "out")
SENT = ("input_tensor", "input", "input_tensors", "inputs", "tensors", "self", "tensor")
"""Arguments that a message goes into, and those that it comes from."""
BARRIERS = ("c10d.barrier", "c10d.monitored_barrier_")


def message_of(name: str, arguments: Mapping[str, object], outputs: list[object], ranks: int) -> tuple[float, str]:
    """Return bytes and number format of the largest buffer of a rank.

    Args:
        arguments: by the names of the schema, tensors as `Facts`.
        outputs: tensors that the operator makes, as `Facts`.
        ranks: of the group.
    """
    what = MESSAGES[name]
    tensors = list(tensors_in(arguments))
    results = list(tensors_in(outputs)) if name.startswith("_c10d") and not name.endswith(("_out", "_")) else []
    dtype = (tensors or results)[0].dtype if tensors or results else "fp32"
    into, sent = _total(arguments, MADE), _total(arguments, SENT)
    made = sum(t.bytes for t in results)
    if what == "all_gather":
        return max(into, made, sent * ranks), dtype
    if what == "reduce_scatter":
        return max(sent, (into or made) * ranks), dtype
    return max(into, sent, made), dtype


def _total(arguments: Mapping[str, object], names: tuple[str, ...]) -> float:
    return sum(t.bytes for name in names if name in arguments for t in tensors_in(arguments[name]))
