"""Models that a row's numbers do not tell: by name one of ours, one with other mixers than attention, or an encoder's family."""

from __future__ import annotations

import functools

from pydantic import ValidationError

from simulator.importers.known_models import model_table
from simulator.importers.table.rows import CannotPlace, Row, count, first_of, flag, number, text
from simulator.specs import load_all, names, working_folder
from simulator.workload.model import Model, load_model

__all__ = ["letters", "special_model"]

FAMILIES = (
    (("t5", "mt5", "flant5", "byt5", "ul2"), "t5_large"),
    (("bert", "roberta", "electra", "albert", "deberta", "esm"), "bert_large"),
)
"""Beginnings of a model's name -> our model whose structure the family has."""
OF_TARGETS = 4
"""Tokens that an encoder reads per token that its decoder writes: 512 to 128 (T5 in NeMo, and about that in the paper's 512 to 114)."""
_ATTENTION = {"full", "window", "chunk"}


def letters(name: str) -> str:
    """Return the letters and digits of a name, in lower case."""
    return "".join(c for c in name.lower() if c.isalnum())


def special_model(row: Row) -> tuple[Model, tuple[str, ...]] | None:
    """Return (model, what was assumed), or None where the row's numbers say all of it, or neither they nor a name of ours.

    Raises:
        CannotPlace: the family is known, but its sizes cannot be as the row has them.
    """
    said = letters(text(row, "model"))
    if not said:
        return None
    if count(row, "arch_layers") is None and count(row, "hidden") is None:
        known = next(iter(_called(said)), None) or _of_hub(text(row, "model"))
        return None if known is None else (known, (f"sizes of {known.name} (the row gives none)",))
    named = next((model for model in _called(said) if _is_mixed(model)), None)
    if named is not None and (count(row, "arch_layers"), count(row, "hidden")) == (named.layers, named.hidden):
        return named, (f"layers as in {named.name}",)
    short = None if named is None else _cut_short(row, named)
    if named is not None and short is not None:
        return short, (f"the first {short.layers} layers of {named.name}",)
    alike = _mixed_alike(row, said)
    if alike is not None:
        return alike, (f"layers as in {alike.name} (the same sizes)",)
    pattern = next((name for starts, name in FAMILIES if said.startswith(starts)), None)
    return None if pattern is None else _resized(row, load_model(pattern))


def _cut_short(row: Row, whole: Model) -> Model | None:
    """The model with fewer layers, as the row has it, where its mixers repeat and the row has whole repeats of them."""
    layers, period = count(row, "arch_layers"), len(whole.mixers)
    same = (count(row, "hidden"), count(row, "moe_experts") or 0) == (whole.hidden, whole.experts)
    if not same or layers is None or layers >= whole.layers or period >= whole.layers or layers % period:
        return None
    data = whole.model_dump(exclude={"parameters_published", "aliases", "notes"})
    return Model(**{**data, "layers": layers, "name": text(row, "model")[:200]})


def _mixed_alike(row: Row, said: str) -> Model | None:
    """Our model with other mixers than attention that has the row's sizes, where the row's name has the first word of its family."""
    sizes = tuple(number(row, name) or 0 for name in ("arch_layers", "hidden", "heads", "kv_heads", "moe_experts"))
    for model in (m for models in _by_letters(working_folder(), tuple(names("models"))).values() for m in models):
        own = (model.layers, model.hidden, model.heads, model.kv_heads, model.experts)
        if own == sizes and model.family.split("_")[0] in said and _is_mixed(model):
            return model
    return None


def _is_mixed(model: Model) -> bool:
    """Whether layers have other mixers than attention."""
    return model.architecture == "transformer" and bool(set(model.layer_mixers) - _ATTENTION)


def _of_hub(name: str) -> Model | None:
    """Our model that is released under this path of a hub."""
    table = model_table(name)
    return None if table is None else load_model(table["name"])


def _called(said: str) -> list[Model]:
    """Our models of this name or alias, told by its letters and digits."""
    return _by_letters(working_folder(), tuple(names("models"))).get(said, [])


@functools.lru_cache(maxsize=4)
def _by_letters(folder: str, known: tuple[str, ...]) -> dict[str, list[Model]]:
    """All models by the letters of their names; made once for a working directory and what it knows."""
    found: dict[str, list[Model]] = {}
    for model in load_all("models", Model).values():
        for name in {letters(name) for name in (model.name, *model.aliases)}:
            found.setdefault(name, []).append(model)
    return found


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
        raise CannotPlace(f"model {text(row, 'model')[:60]!r}: {first_of(error)}", counts=False) from None
    return model, (f"architecture {pattern.architecture} as {pattern.name}",)
