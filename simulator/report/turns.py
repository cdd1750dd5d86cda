"""The turns in which a chunk of layers runs backward, as a picture: which layer's input stands when, and what runs again."""

from __future__ import annotations

from collections.abc import Collection

from simulator.report.table import Section, Table
from simulator.schedules.reversal import Reversal

__all__ = ["turns_dict", "turns_section"]

_INPUT, _FROM, _AGAIN, _TURN, _BACK, _ALL = "o", "O", ">", "T", "B", "*"
_WORDS = (
    "a column is a turn of the backward, the first what the forward left: o a layer's input stands, O and forwards run again",
    "from it, > its forward runs again on the way, T its forward and at once its backward, * all that it made stands, B its backward",
)
_MOST = 100
"""Turns of a picture."""


def turns_dict(plan: Reversal) -> dict[str, object]:
    """Return the same as data: layers are numbered in their chunk."""
    return {
        "layers": plan.layers,
        "stored": list(plan.stored),
        "most_inputs": plan.most,
        "forwards_again": plan.repeats,
        "turns": [
            {"first": t.first, "last": t.last, "start": t.start, "stores": list(t.stores), "again": t.again}
            for t in plan.turns
        ],
    }


def turns_section(plan: Reversal, what: str) -> Section:
    """Return the picture to read, the last layer above.

    Args:
        what: is recomputed, in words.
    """
    counts = f"{plan.repeats} forwards of a layer run again, for {plan.layers} layers; of {plan.most} layers the input stands at most"
    if len(plan.turns) > _MOST:
        return Section(
            title=f"what the backward makes again: {what}",
            lines=(counts, f"{len(plan.turns)} turns: --json lists them"),
        )
    lines = picture(plan)
    width = len(str(plan.layers - 1))
    rows = tuple((f"layer {layer:>{width}}", lines[layer]) for layer in reversed(range(plan.layers)))
    return Section(
        title=f"what the backward makes again: {what}",
        lines=(counts,),
        table=Table(headings=("", ""), rows=rows, left=(0, 1)),
        below=_WORDS,
    )


def picture(plan: Reversal) -> list[str]:
    """Return a line per layer, the first layer first: what stands when the forward has ended, then a letter per turn.

    >>> from simulator.schedules.reversal import revolve
    >>> print("\\n".join(reversed(picture(revolve([1] * 4, [1] * 4, 2)))))
    * |B   |
      | T  |
    o |oOT |
    o |oooT|
    """
    left = set(range(plan.layers))
    whole = {layer for layer in left if plan.keeps[layer]}

    def stands(layer: int, held: Collection[int]) -> str:
        return _ALL if layer in whole & left else _INPUT if layer in held else " "

    lines = [f"{stands(layer, plan.stored)} |" for layer in range(plan.layers)]
    for turn, held in plan.standing():
        left -= set(range(turn.first, turn.last + 1))
        for layer in range(plan.layers):
            mark = stands(layer, held)
            if turn.first <= layer <= turn.last:
                mark = _TURN if turn.again else _BACK
            elif turn.start <= layer < turn.first:
                mark = _FROM if layer in held else _AGAIN
            lines[layer] += mark
    return [line + "|" for line in lines]
