"""Models that a row's numbers cannot tell: by name one of ours with other mixers than attention, or an encoder's family."""

from __future__ import annotations

from pydantic import ValidationError

from simulator.specs import load_all
from simulator.studies.validation.rows import CannotPlace, Row, count, flag, text
from simulator.workload.model import Model, load_model

__all__ = ["letters", "special_model"]

FAMILIES = (
    (("t5", "mt5", "flant5", "byt5", "ul2"), "t5_large"),
    (("bert", "roberta", "electra", "albert", "deberta"), "bert_large"),
)
"""Beginnings of a model's name -> our model whose structure the family has."""
OF_TARGETS = 4
"""Tokens that an encoder reads per token that its decoder writes: 512 to 128 (T5 in NeMo, and about that in the paper's 512 to 114)."""
_ATTENTION = {"full", "window", "chunk"}


def letters(name: str) -> str:
    """Return the letters and digits of a name, in lower case."""
    return "".join(c for c in name.lower() if c.isalnum())


def special_model(row: Row) -> tuple[Model, tuple[str, ...]] | None:
    """Return (model, what was assumed), or None where the row's numbers say all of it.

    Raises:
        CannotPlace: the family is known, but its sizes cannot be as the row has them.
    """
    said = letters(text(row, "model"))
    if not said:
        return None
    named = _mixed(said)
    if named is not None and (count(row, "arch_layers"), count(row, "hidden")) == (named.layers, named.hidden):
        return named, (f"layers as in {named.name}",)
    pattern = next((name for starts, name in FAMILIES if said.startswith(starts)), None)
    return None if pattern is None else _resized(row, load_model(pattern))


def _mixed(said: str) -> Model | None:
    """Our model of this name whose layers have other mixers than attention, or none."""
    for model in load_all("models", Model).values():
        other = model.architecture == "transformer" and set(model.layer_mixers) - _ATTENTION
        if other and said in {letters(name) for name in (model.name, *model.aliases)}:
            return model
    return None


def _resized(row: Row, pattern: Model) -> tuple[Model, tuple[str, ...]]:
    """Return our model of a family with the row's sizes; `arch_layers` counts one stack."""
    data = pattern.model_dump(exclude={"parameters_published", "aliases", "notes", "kv_heads", "head_dim"})
    sizes = {"layers": "arch_layers", "hidden": "hidden", "heads": "heads", "ffn": "ffn_hidden", "vocabulary": "vocab"}
    sizes |= {"kv_heads": "kv_heads", "head_dim": "head_dim", "sequence_length": "seq_len"}
    found = {field: value for field, column in sizes.items() if (value := count(row, column)) is not None}
    if "layers" not in found or "hidden" not in found or "sequence_length" not in found:
        raise CannotPlace("the row gives no arch_layers, hidden or seq_len", counts=False)
    found.setdefault("ffn", 4 * found["hidden"])
    for field, column in (("gated_mlp", "gated_mlp"), ("tied_embeddings", "tied_emb")):
        if (value := flag(row, column)) is not None:
            found[field] = value
    if pattern.architecture == "encoder_decoder":
        found |= {"encoder_layers": found["layers"], "target_length": max(1, found["sequence_length"] // OF_TARGETS)}
    try:
        model = Model(**{**data, **found, "name": text(row, "model")[:200]})
    except ValidationError as error:
        raise CannotPlace(f"model {text(row, 'model')[:60]!r}: {error.errors()[0]['msg']}", counts=False) from None
    return model, (f"architecture {pattern.architecture} as {pattern.name}",)
