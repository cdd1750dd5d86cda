"""The contract of a search strategy: which plans are simulated, and what is proven when it ends."""

from __future__ import annotations

import abc
from typing import ClassVar

from simulator.search.run import Run
from simulator.search.space import Space

__all__ = ["Strategy"]


class Strategy(abc.ABC):
    """Decides which plans of a space are simulated.

    Class attributes:
        name: as users write it.
        aliases: other names.
        source: where it was read.
        proves: what is known of its answer when it ends by itself, in words.
        exact: whether that is that no plan of the space is better.
        draws: whether it takes a number of tries and a seed.
    """

    name: ClassVar[str]
    aliases: ClassVar[tuple[str, ...]] = ()
    source: ClassVar[str]
    proves: ClassVar[str]
    exact: ClassVar[bool] = False
    draws: ClassVar[bool] = False

    def prepared(self, space: Space) -> Space:
        """Return the space that is searched where a user asks for one: the same, unless the strategy adds choices of its own.

        Raises:
            SpecError: the space leaves it none.
        """
        return space

    @abc.abstractmethod
    def search(self, run: Run, tries: int, seed: int) -> None:
        """Simulate plans until there is nothing left to learn, or `run.over`; set `run.complete` when it ends by itself.

        Args:
            tries: plans that a strategy which draws may simulate.
            seed: of what it draws.
        """
