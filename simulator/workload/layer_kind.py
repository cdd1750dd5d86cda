"""Kinds of layers: what mixes the tokens, what follows it, and in which stack of the model it stands.

A kind has a name of words, such as "layer", "window moe layer", "encoder layer" or "mamba2 only layer"; lowering knows kinds by
these names alone, and layers of equal names cost the same.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

__all__ = ["DECODER_EMBEDDING", "MTP_HEAD", "MTP_LAYER", "WORDS", "LayerKind", "is_layer", "layer_kind"]

WORDS = ("encoder", "cross", "mlp", "moe", "only", "layer")
"""Words of names of kinds that are no mixer's."""

MTP_LAYER, MTP_HEAD = "mtp layer", "mtp head"
"""A multi-token prediction module: its projection and transformer layer, and its norm, output and loss."""
DECODER_EMBEDDING = "decoder embedding"
"""The second look-up of an encoder-decoder's table, where its decoder begins."""


@dataclass(frozen=True, slots=True)
class LayerKind:
    """One kind of layer.

    Args:
        mixer: a member of blocks/mixer (full: attention to all (earlier) tokens; window: to the last `window` ones; chunk: within
            blocks of `window` tokens; mamba2: a state-space layer; delta: a gated delta rule, ...), or "none": an MLP alone.
        mlp: "dense", "moe" or "only" (the mixer stands alone).
        stack: "" (the only stack, or a decoder's), "encoder", or "cross" (a decoder's layer that also attends to the encoder).
    """

    mixer: str = "full"
    mlp: str = "dense"
    stack: str = ""

    @property
    def name(self) -> str:
        """The kind in words.

        >>> LayerKind("window", "moe").name, LayerKind().name, LayerKind(stack="encoder").name
        ('window moe layer', 'layer', 'encoder layer')
        """
        mixer = "" if self.mixer == "full" else "mlp" if self.mixer == "none" else self.mixer
        return " ".join(word for word in (self.stack, mixer, "" if self.mlp == "dense" else self.mlp, "layer") if word)


@functools.lru_cache(maxsize=256)
def layer_kind(name: str) -> LayerKind:
    """Return the kind of this name; the ends of a model have neither a mixer nor an MLP.

    >>> layer_kind("window moe layer") == LayerKind("window", "moe"), layer_kind("head").mlp
    (True, 'only')
    """
    words = name.split()
    if not is_layer(name):
        return LayerKind("none", "only")
    mixer = next((word for word in words if word not in WORDS), "none" if "mlp" in words else "full")
    mlp = next((m for m in ("moe", "only") if m in words), "dense")
    return LayerKind(mixer, mlp, next((s for s in ("encoder", "cross") if s in words), ""))


def is_layer(name: str) -> bool:
    """Return whether this is one of the layers that a model's authors count, not one of its ends.

    >>> is_layer("window layer"), is_layer("mtp layer"), is_layer("head")
    (True, False, False)
    """
    words = name.split()
    return "layer" in words and words[0] != "mtp"
