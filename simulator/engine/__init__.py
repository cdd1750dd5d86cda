"""Run a priced program: when does every row start and end?  Two engines, one meaning.

`simpy_engine` is the readable truth, one process per stream; `compiled_engine` computes the same over arrays, a hundred
times as fast.  They know nothing of each other, and nothing of hardware, schedules or reports.
"""

from __future__ import annotations

from simulator.errors import UnknownNameError
from simulator.program.prices import Prices
from simulator.program.program import Program
from simulator.program.trace import Trace

__all__ = ["ENGINES", "run"]

ENGINES = ("compiled", "simpy")
"""Names of the engines."""


def run(program: Program, prices: Prices, engine: str = "compiled") -> Trace:
    """Return start and end [s] of every row.

    Args:
        program: what happens.
        prices: seconds of every item of the program.
        engine: "compiled" (quick) or "simpy" (readable); they agree to the last bit without interference, to 1e-9 with.

    Raises:
        UnknownNameError: no such engine.
        ProgramError: an index out of range, or prices that do not fit the program.
        DeadlockError: rows are left that wait for each other; the message names the ring.

    >>> import numpy as np
    >>> from simulator.program.builder import ProgramBuilder, plain_segment
    >>> build = ProgramBuilder()
    >>> stream = build.add_stream(build.add_rank())
    >>> layer = build.add_item(plain_segment("layer"))
    >>> rows = [build.add_row(layer, stream) for _ in range(3)]
    >>> run(build.build(), Prices.plain(np.array([2.0]), np.zeros(1)), engine="simpy").makespan
    6.0
    """
    if engine == "compiled":
        from simulator.engine.compiled_engine import run_compiled

        return run_compiled(program, prices)
    if engine == "simpy":
        from simulator.engine.simpy_engine import run_simpy

        return run_simpy(program, prices)
    raise UnknownNameError("engine", engine, ENGINES)
