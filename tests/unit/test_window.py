"""Which part of a program of several steps is a step, and what a program by hand must keep for that."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.command import Dtsim

HEAD = """\
program "steps" axes=tp=2,pp={pp}
rank 0 weight=1
stream 0 0:compute
stream 1 0:dp
item 0 segment "layer" phase=forward
item 1 collective all_reduce "gradients" message=64MiB dtype=bf16 group=tp ranks=0 account=tp
"""


def written(folder: Path, rows: list[tuple[int, int]], pp: int = 1) -> str:
    """A program of one rank: a forward of each (microbatch, step), one after another, and an all_reduce behind it."""
    path, lines = folder / "steps.program", []
    for number, (m, s) in enumerate(rows):
        before = f" after {2 * number - 1}" if number else ""
        lines.append(f"{2 * number} compute 0F{m} item=0 step={s} on 0:compute{before}  # layer")
        lines.append(
            f"{2 * number + 1} collective all_reduce message=64MiB group=tp item=1 step={s} on 0:dp after {2 * number}  # gradients"
        )
    path.write_text(HEAD.format(pp=pp) + "\n".join(lines) + "\n")
    return str(path)


@pytest.mark.parametrize(
    ("rows", "pp", "said"),
    [
        ([(0, 0), (1, 1), (2, 1)], 1, "rank 0 computes 3 microbatches in 2 steps"),
        ([(0, 1)], 1, "rank 0 computes 1 microbatches in 2 steps"),
        ([(0, 1), (1, 0)], 4, "2 steps of 1 hold fewer microbatches than the pattern of 4 ranks"),
    ],
)
def test_steps_by_hand_that_are_unlike_are_refused(
    rows: list[tuple[int, int]], pp: int, said: str, dtsim: Dtsim, tmp_path: Path
) -> None:
    code, _, error = dtsim("run", written(tmp_path, rows, pp), "--cluster", "dgx_a100")
    assert (2, True, True) == (code, said in error, "Way out" in error), error


def test_a_step_by_hand_is_one_of_several_alike(dtsim: Dtsim, tmp_path: Path) -> None:
    def seconds(rows: list[tuple[int, int]]) -> float:
        code, out, error = dtsim("run", written(tmp_path, rows), "--cluster", "dgx_a100", "--json")
        assert 0 == code, error
        return float(json.loads(out)["step_time_s"]["value"])

    one = seconds([(0, 0), (1, 0)])
    assert one == pytest.approx(seconds([(0, 0), (1, 0), (2, 1), (3, 1), (4, 2), (5, 2)]))


def test_a_program_in_which_nothing_takes_time_is_refused(dtsim: Dtsim, tmp_path: Path) -> None:
    path = tmp_path / "nothing.program"
    path.write_text(
        'program "x" axes=pp=1\nrank 0 weight=1\nstream 0 0:compute\nitem 0 segment "layer" phase=forward\n'
        "0 compute 0F0 item=0 on 0:compute  # layer\n"
    )
    code, _, error = dtsim("run", str(path), "--cluster", "dgx_a100")
    assert (2, True) == (code, "a step takes time" in error), error
