"""dtsim: a distributed-training simulator.

A model, a cluster and a parallel plan go in; step time and memory per GPU, with an error band, come out, and the reasons why.

    >>> import simulator
    >>> prediction = simulator.simulate_job(simulator.load_job("gpt3_175b"))
    >>> prediction.low < prediction.step_time < prediction.high
    True
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_PUBLIC = {
    "Cluster": "simulator.hardware.cluster",
    "Gpu": "simulator.hardware.gpu",
    "Job": "simulator.job",
    "Model": "simulator.workload.model",
    "Plan": "simulator.plan.plan",
    "Prediction": "simulator.report.prediction",
    "Prices": "simulator.program.prices",
    "Program": "simulator.program.program",
    "Trace": "simulator.program.trace",
    "Workload": "simulator.workload.workload",
    "job_from_names": "simulator.job",
    "load_cluster": "simulator.hardware.cluster",
    "load_job": "simulator.job",
    "load_model": "simulator.workload.model",
    "lower": "simulator.lowering",
    "measure": "simulator.report.prediction",
    "price": "simulator.costs.price",
    "run": "simulator.engine",
    "simulate": "simulator.simulation",
    "simulate_job": "simulator.simulation",
}

__all__ = ["__version__", *sorted(_PUBLIC)]


def __getattr__(name: str) -> Any:
    """Load a public name at first use, so that `import simulator` reads no file and stays light."""
    if name not in _PUBLIC:
        raise AttributeError(f"module 'simulator' has no attribute {name!r}")
    value = getattr(importlib.import_module(_PUBLIC[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the public names too, loaded or not: what `dir`, `help` and completion show."""
    return sorted({*globals(), *_PUBLIC})
