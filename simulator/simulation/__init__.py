"""From a job to a prediction: `simulate`, the whole way on one page."""

from simulator.simulation.whole_way import simulate, simulate_job, simulate_program

__all__ = ["simulate", "simulate_job", "simulate_program"]
