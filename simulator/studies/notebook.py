"""What the lessons use to show things: sliders where ipywidgets is installed, else a picture that stands still; plots as images."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

__all__ = ["picture", "slide"]


def slide(draw: Callable[..., object], **choices: Sequence[object]) -> None:
    """Call `draw` with a value of every list, chosen by sliders; without ipywidgets with the first of each.

    Args:
        draw: takes the names of the lists as arguments; it displays what it makes.
        choices: the values that a slider steps through, the first one shown first.

    >>> slide(lambda ranks: print(ranks, "ranks"), ranks=[4])
    4 ranks
    """
    single = all(len(values) == 1 for values in choices.values())
    if single or importlib.util.find_spec("ipywidgets") is None or not _in_notebook():
        draw(**{name: values[0] for name, values in choices.items()})
        return
    import ipywidgets

    sliders = {
        name: ipywidgets.SelectionSlider(options=list(values), value=values[0], description=name.replace("_", " "))
        for name, values in choices.items()
    }
    ipywidgets.interact(draw, **sliders)


def _in_notebook() -> bool:
    """Whether a Jupyter kernel runs this, which alone can show a slider."""
    if importlib.util.find_spec("IPython") is None:
        return False
    from IPython import get_ipython

    shell: object = get_ipython()
    return shell is not None and hasattr(shell, "kernel")


def picture(plot: Callable[..., Path], *arguments: object, width: int = 1000, **more: object) -> None:
    """Display what a plot draws; `plot` takes the path of its file as the last of the arguments without a name.

    Args:
        plot: such as `simulator.report.plots.plot_prediction`; called with the arguments, a path, and the named ones.
        width: of the image [pixels].
    """
    from IPython.display import Image, display

    with tempfile.TemporaryDirectory() as folder:
        image = plot(*arguments, Path(folder) / "picture.png", **more)
        display(Image(image.read_bytes(), width=width))  # type: ignore[no-untyped-call]
