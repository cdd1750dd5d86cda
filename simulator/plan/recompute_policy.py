"""Recompute policies: what of a layer is kept by name while all else is made again, read from hardware_specs/recompute_policies.

Codes on JAX name the values of a layer and keep those that a policy lists (`jax.checkpoint_policies.save_only_these_names`).
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from simulator.specs import Listed, NamedSpec, load_named

__all__ = ["RecomputePolicy", "Value", "load_recompute_policy"]

Value = Literal["qkv", "context", "projection", "mlp_up", "mlp_down", "products"]


class RecomputePolicy(NamedSpec):
    """What a policy keeps of every layer, beside its input.

    Args:
        saves: qkv (queries, keys and values as attention reads them), context (what attention returns), projection (of
            attention), mlp_up (and gate, before the activation function), mlp_down, products (every matrix product, those of
            attention whose scores are in memory too).
    """

    saves: Annotated[
        tuple[Value, ...],
        Listed,
        Field(min_length=1),
    ]


def load_recompute_policy(name: str) -> RecomputePolicy:
    """Return the policy with this name or alias, from hardware_specs/recompute_policies."""
    return load_named("recompute_policies", name, RecomputePolicy)
