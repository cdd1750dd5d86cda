"""Hashes that are kept: those of equal values are equal, and they stay at home."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from dataclasses import replace

import pytest

from simulator import load_cluster
from simulator.hardware.fabric import fabric_of
from simulator.workload.operator import KernelStyle

VALUES = (load_cluster("dgx_h100", 16), fabric_of(load_cluster("dgx_h100", 16)), KernelStyle())


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_equal_values_have_equal_hashes(value: object) -> None:
    again = replace(value)  # type: ignore[type-var]
    assert again is not value
    assert {value} == {again}
    assert {value: 1}[pickle.loads(pickle.dumps(value))] == 1


def test_a_value_from_another_process_hashes_as_one_of_this() -> None:
    script = (
        "import pickle, sys; from simulator.workload.operator import KernelStyle; style = KernelStyle(); hash(style); "
        "sys.stdout.buffer.write(pickle.dumps(style))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": os.pathsep.join(sys.path)}
    sent = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, env=environment).stdout
    assert {KernelStyle(): 1}[pickle.loads(sent)] == 1
