"""Ctrl-C while a library is loaded: what it leaves half made must not be taken down."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HALF_LOADED = """
import atexit, os, signal, sys, simulator.cli, simulator.cli.app

class Half:  # what a library leaves behind that Ctrl-C stopped while it was loaded
    def __del__(self, abort=os.abort):
        abort()

def stopped(words):
    os.kill(os.getpid(), signal.SIGINT)

half, simulator.cli.app._run = Half(), stopped
atexit.register(print, "cleaned up")
simulator.cli.main()
"""


def test_a_stopped_program_ends_before_half_loaded_libraries_are_taken_down(tmp_path: Path) -> None:
    left = subprocess.run(
        [sys.executable, "-c", HALF_LOADED],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (130, "") == (left.returncode, left.stderr)
