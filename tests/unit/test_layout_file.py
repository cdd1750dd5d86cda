"""Layouts as files, as strategies, of single tensors, side by side and as pictures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.command import Dtsim

MODEL = "gpt2_124m"
BOTH = """
name = "both"

[mesh]
rows = 2
cols = 2

[rules]
batch = "rows"
heads = "cols"
ffn = "cols"
"""


def answer(dtsim: Dtsim, *words: str) -> dict[str, Any]:
    code, text, said = dtsim("layout", MODEL, *words, "--json")
    assert 0 == code, said
    found: dict[str, Any] = json.loads(text)
    return found


def written(folder: Path, text: str, name: str = "layout.toml") -> str:
    (folder / name).write_text(text)
    return str(folder / name)


def held(found: dict[str, Any], tensor: str) -> dict[str, str]:
    """Where a tensor lies."""
    mine = (o["layout"] for op in found["ops"] for o in op["operands"] if o["name"] == tensor)
    out: dict[str, str] = next(mine)
    return out


def test_a_file_says_what_maps_say(dtsim: Dtsim, tmp_path: Path) -> None:
    of_file = answer(dtsim, "--layout", written(tmp_path, BOTH))
    maps = ("--map", "batch=rows", "--map", "heads=cols", "--map", "ffn=cols")
    by_hand = answer(dtsim, "--mesh", "rows=2,cols=2", *maps)
    assert "both" == of_file["layout"]
    assert of_file | {"layout": "map"} == by_hand


def test_rules_of_weights_alone_gather_them_for_every_product(dtsim: Dtsim, tmp_path: Path) -> None:
    """ZeRO-3: sequences and weights on one axis."""
    text = 'name = "zero_3"\nmesh = {data = 4}\n[activations]\nbatch = "data"\n[weights]\nhidden = "data"\n'
    found = answer(dtsim, "--layout", written(tmp_path, text))
    up = next(op for op in found["ops"] if op["label"] == "mlp up")
    assert [
        ("all_gather", "forward"),
        ("all_gather", "backward"),
        ("reduce_scatter", "backward"),
        ("all_reduce", "backward"),
    ] == [(c["kind"], c["direction"]) for c in up["collectives"]]
    weight = next(o for o in up["operands"] if o["name"] == "mlp up weight")
    assert ({"hidden": 192, "ffn": 3072}, {"hidden": 768, "ffn": 3072}) == (weight["local_shape"], weight["used_shape"])


def test_single_tensors_lie_where_they_are_put(dtsim: Dtsim, tmp_path: Path) -> None:
    text = BOTH + '\n[tensors."mlp up weight"]\nhidden = "cols"\n\n[sbp]\n"mlp down weight" = ["B", "S(1)"]\n'
    found = answer(dtsim, "--layout", written(tmp_path, text), "--map", "projection weight.hidden=rows")
    assert {"cols": "S(hidden)"} == held(found, "mlp up weight") == held(found, "mlp down weight")
    assert {"rows": "S(hidden)"} == held(found, "projection weight")


def test_a_strategy_goes_by_its_name_with_maps_beside_it(dtsim: Dtsim) -> None:
    found = answer(dtsim, "--layout", "megatron", "--mesh", "rows=2,tensor=4", "--map", "batch=rows")
    assert {"tensor": "S(ffn)"} == held(found, "mlp up weight")
    assert {"rows": "S(batch)", "tensor": "S(ffn)"} == held(found, "down input")


def test_annotations_propagate(dtsim: Dtsim) -> None:
    found = answer(
        dtsim, "--mesh", "rows=2,cols=2", "--map", "batch=rows", "--map", "mlp up weight.ffn=cols", "--propagate"
    )
    told = found["propagated"]
    assert {"embedding token ids": {"rows": "batch"}, "mlp up weight": {"cols": "ffn"}} == told["given"]
    assert {"cols": "ffn"} == told["found"]["mlp down weight"]
    assert "projection weight" in told["open"]
    assert [] == told["conflicts"]
    assert {"cols": "S(ffn)"} == held(found, "mlp down weight")


def test_conflicts_are_listed(dtsim: Dtsim) -> None:
    words = (
        "--mesh",
        "cols=2",
        "--map",
        "mlp up weight.ffn=cols",
        "--map",
        "down input.batch=cols",
        "--propagate",
        "--batch",
        "2",
    )
    code, text, _ = dtsim("layout", MODEL, *words)
    assert 0 == code
    assert "mesh axis 'cols' has batch, not ffn" in text


def test_layouts_stand_side_by_side(dtsim: Dtsim, tmp_path: Path) -> None:
    wide = BOTH.replace("both", "wide").replace("ffn =", "vocab =")
    one, other = written(tmp_path, BOTH, "one.toml"), written(tmp_path, wide, "two.toml")
    code, text, _ = dtsim("layout", MODEL, "--compare", f"{one},{other}", "--cluster", "dgx_a100")
    assert 0 == code
    for words in ("both", "wide", "sent backward", "both, one after the other", "layer, 12 times", "mlp down"):
        assert words in text
    found = answer(dtsim, "--compare", f"{one},{other}")
    assert ["both", "wide"] == [each["layout"] for each in found["layouts"]]


def test_sbp_tells_how_operands_lie(dtsim: Dtsim, tmp_path: Path) -> None:
    code, text, _ = dtsim("layout", MODEL, "--layout", written(tmp_path, BOTH), "--sbp")
    assert 0 == code
    assert "[S(0),S(2)] [B,S(0)] -> [S(0),P]" in text


@pytest.mark.parametrize("mesh", ["cols=4", "rows=2,cols=2", "rows=2,cols=2,deep=2"])
def test_a_picture_shows_who_holds_what(dtsim: Dtsim, tmp_path: Path, mesh: str) -> None:
    picture = tmp_path / "who.png"
    code, _, said = dtsim("layout", MODEL, "--mesh", mesh, "--map", "ffn=cols", "--plot", str(picture))
    assert (0, True) == (code, f"wrote {picture}" in said)
    assert b"\x89PNG" == picture.read_bytes()[:4]
    code, _, said = dtsim("layout", MODEL, "--mesh", mesh, "--map", "ffn=cols", "--plot", str(picture))
    assert (2, True) == (code, "--force" in said)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('name = "x"\n', "mesh"),
        ('name = "x"\nmesh = {rows = 2}\nrules = {ffn = "cols"}\n', "no mesh axis 'cols'"),
        ('name = "x"\nmesh = {rows = 2}\nrules = {ffn = 3}\n', "ffn"),
        ('name = "x"\nmesh = {rows = 2}\nrulez = {ffn = "rows"}\n', "rulez"),
        ('name = "x"\nmesh = {rows = 0}\n', "mesh"),
        (
            'name = "x"\nmesh = {rows = 2}\ntensors = {"mlp upp weight" = {ffn = "rows"}}\n',
            "Did you mean 'mlp up weight'",
        ),
        ('name = "x"\nmesh = {rows = 2}\ntensors = {"mlp up weight" = {fnn = "rows"}}\n', "Did you mean 'ffn'"),
        (
            'name = "x"\nmesh = {rows = 2}\ntensors = {"mlp up weight" = {ffn = "rows", hidden = "rows"}}\n',
            "Nearest: one of them whole",
        ),
        (
            'name = "x"\nmesh = {rows = 2}\nsbp = {"mlp down output" = ["P"]}\n',
            "terms of a sum that nobody adds up. Nearest: B, or S(2)",
        ),
        ('name = "x"\nmesh = {rows = 2}\nsbp = {"mlp down output" = ["S(3)"]}\n', "expected S(0) to S(2)"),
        ("name = \n", "layout.toml"),
    ],
)
def test_a_wrong_file_is_refused_in_one_message(dtsim: Dtsim, tmp_path: Path, text: str, said: str) -> None:
    code, out, error = dtsim("layout", MODEL, "--layout", written(tmp_path, text))
    assert (2, "") == (code, out)
    assert said in error


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("", "on which mesh?"),
        ("--layout megatron", "on which mesh?"),
        ("--layout megatron --mesh cols=4", "Nearest: --mesh tensor=4"),
        ("--layout megatrom --mesh tensor=4", "Did you mean 'megatron'"),
        ("--layout nothing.toml", "nothing.toml"),
        ("--compare megatron --mesh tensor=4", "two layouts or more"),
        ("--compare megatron,whole_vocabulary --mesh tensor=4 --sbp", "--compare"),
        ("--mesh cols=4 --map ffn=cols --plot who.doc", "who.doc"),
    ],
)
def test_what_cannot_be_asked_is_refused(
    dtsim: Dtsim, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, error = dtsim("layout", MODEL, *words.split())
    assert (2, "") == (code, out)
    assert said in error


def test_a_mesh_that_contradicts_a_file_is_refused(dtsim: Dtsim, tmp_path: Path) -> None:
    code, _, error = dtsim("layout", MODEL, "--layout", written(tmp_path, BOTH), "--mesh", "rows=4")
    assert (2, True) == (code, "says what its mesh is" in error)
