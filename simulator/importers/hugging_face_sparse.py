"""Which layers of a Hugging Face model have experts: the first so many dense, then every so-many-th, under the names of its families.

Source: the configuration classes of the transformers library (version 5).
"""

from __future__ import annotations

from simulator.errors import SpecError
from simulator.importers.hugging_face_config import Config

__all__ = ["sparse_layers"]


def sparse_layers(c: Config, layers: int) -> dict[str, int]:
    """Return dense_layers, and moe_every where it is not 1.

    Args:
        layers: of the model.

    Raises:
        SpecError: the file lists other layers than these two fields can say.
    """
    every = c.whole("decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_interval", default=_frequency(c))
    dense = max(c.count("first_k_dense_replace"), c.count("moe_layer_start_index"), _listed_dense(c, layers))
    _check_listed(c, layers, every)
    return {"dense_layers": dense} | ({"moe_every": every} if every > 1 else {})


def _listed_dense(c: Config, layers: int) -> int:
    """How many layers the file lists as dense, all at the beginning; 0 where it lists none."""
    kinds, listed, only = c.words("mlp_layer_types"), c.get("moe_layer_freq"), c.get("mlp_only_layers") or []
    if set(kinds) - {"dense", "sparse"} or not isinstance(only, list):
        raise SpecError(
            f"{c.path}: mlp_layer_types, mlp_only_layers: expected words dense and sparse, and numbers of layers"
        )
    sparse = [word == "sparse" for word in kinds] or [layer not in only for layer in range(layers)]
    sparse = [bool(one) for one in listed] if isinstance(listed, list) else sparse
    dense = sparse.count(False)
    if any(sparse[:dense]):
        name = "mlp_layer_types" if kinds else "moe_layer_freq" if isinstance(listed, list) else "mlp_only_layers"
        raise SpecError(f"{c.path}: {name}: only dense layers in front of sparse ones are modelled")
    return dense


def _frequency(c: Config) -> int:
    """DeepSeek's moe_layer_freq, where it is a number and no list of all layers."""
    return 1 if isinstance(c.get("moe_layer_freq"), list) else c.whole("moe_layer_freq", default=1)


def _check_listed(c: Config, layers: int, every: int) -> None:
    """Refuse a list of the layers with experts (Llama 4) that is not every so-many-th."""
    listed = c.get("moe_layers")
    if listed and listed != list(range(every - 1, layers, every)):
        raise SpecError(
            f"{c.path}: moe_layers: expected every layer from {every - 1} on in steps of {every}, got {str(listed)[:60]}"
        )
