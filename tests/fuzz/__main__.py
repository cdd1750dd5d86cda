"""The fuzzers for as long as wanted; see `tests.fuzz.runner`."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys

from tests.fuzz.runner import fuzz
from tests.fuzz.targets import TARGETS

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--inputs", type=int, help="of each kind, then stop")
    parser.add_argument("--first", type=int, default=0, help="number of the first input of each kind")
    parser.add_argument("--target", choices=[target.name for target in TARGETS], nargs="+")
    parser.add_argument("--json", action="store_true", help="the tally of each kind")
    given = parser.parse_args()
    chosen = tuple(target for target in TARGETS if not given.target or target.name in given.target)
    tallies = fuzz(60.0 * given.minutes, given.seed, chosen, given.inputs, given.first)
    if given.json:
        print(json.dumps({name: dataclasses.asdict(tally) for name, tally in tallies.items()}))
    else:
        for name, tally in tallies.items():
            print(tally.line(name))
        every = sum(tally.inputs for tally in tallies.values())
        deep = sum(tally.deep for tally in tallies.values())
        print(f"{every} inputs, {deep / max(every, 1):.0%} past the first check")
    sys.exit(int(any(tally.failures for tally in tallies.values())))
