"""The fuzzers for as long as wanted; see `tests.fuzz.runner`."""

from __future__ import annotations

import argparse

from tests.fuzz.runner import fuzz
from tests.fuzz.targets import TARGETS

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--inputs", type=int, help="of one target, then stop")
    parser.add_argument("--target", choices=[target.name for target in TARGETS])
    given = parser.parse_args()
    chosen = tuple(target for target in TARGETS if given.target in (None, target.name))
    for name, tally in fuzz(60.0 * given.minutes, given.seed, chosen, given.inputs).items():
        print(tally.line(name))
