"""Electricity: what a job or a cluster's file says of it, and what GPUs draw in each phase.

[power]
cap = "500 W"              # of every GPU, below its own limit: a what-if, its clock falls where it would draw more
pue = 1.1                  # facility over computers
grid = "0.4 kg/kWh"        # CO2 of the electricity
"""

from __future__ import annotations

import functools
from typing import Annotated

from pydantic import Field

from simulator.errors import SpecError
from simulator.hardware.gpu import Gpu
from simulator.specs import NamedSpec, Spec, load_named
from simulator.units import CarbonIntensity, Watts, show

__all__ = ["Power", "PowerCoefficients", "load_power_coefficients"]

Share = Annotated[float, Field(ge=0, le=1)]


class Power(Spec):
    """The table [power].

    Args:
        cap: power limit of every GPU [W].
        pue: power of the whole facility over that of its computers; None = the default of calibrations/power.toml.
        grid: CO2 per energy [kg/J]; None = likewise.
    """

    cap: Watts | None = None
    pue: Annotated[float, Field(ge=1, le=10)] | None = None
    grid: CarbonIntensity | None = None
    source: str | None = None

    def capped(self, gpu: Gpu) -> Gpu:
        """Return a GPU under the cap.

        Raises:
            SpecError: the cap is above its limit, or it draws more idle.
        """
        least = load_power_coefficients().idle * gpu.power
        if self.cap is None or not least < self.cap <= gpu.power:
            raise SpecError(
                f"power.cap must be above what {gpu.name} draws idle ({show(least, 'W')}) and at most its own limit of "
                f"{show(gpu.power, 'W')}, but is {show(self.cap or 0.0, 'W')}"
            )
        return gpu.model_copy(update={"power": self.cap})


class PowerCoefficients(NamedSpec):
    """The file calibrations/power.toml: parts of a GPU's power limit, and what stands around GPUs.

    Args:
        idle: of a GPU without work.
        waiting: of a GPU whose kernels wait for others (bubbles, a hung job).
        memory_bound: of kernels limited by memory bandwidth.
        communication: of collectives and messages that nothing hides.
        rest: power of a node besides its GPUs and of its part of the network, over its GPUs' limits together, under load.
        rest_idle: the same while the GPUs are idle.
        pue, grid: where a job names none.
    """

    idle: Share
    waiting: Share
    memory_bound: Share
    communication: Share
    rest: Annotated[float, Field(ge=0, le=3)]
    rest_idle: Annotated[float, Field(ge=0, le=3)]
    pue: Annotated[float, Field(ge=1, le=10)]
    grid: CarbonIntensity


@functools.lru_cache(maxsize=4)
def load_power_coefficients() -> PowerCoefficients:
    """Return the file calibrations/power.toml."""
    return load_named("calibrations", "power", PowerCoefficients)
