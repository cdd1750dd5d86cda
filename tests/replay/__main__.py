"""Process replay: what this tree computes, beside what its base computes, bit by bit, on this machine.

    python -m tests.replay                      against HEAD (the change not yet committed)
    python -m tests.replay --base main~3        against another revision
    python -m tests.replay --only "plan 17"     cases whose name holds these words; shows the first differing value of each column
    python -m tests.replay --write-figures      write figures.csv anew: rounded figures of all cases, for other machines

Every measured row, every job and 2,400 plans over all framework profiles, families and plan fields are predicted; each column of program,
prices, trace and memory is hashed (digest.py).  Digests of a base are kept in build/replay by commit.  Exit code 1 when anything differs.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.replay.collect import Digests, collect

ROOT = Path(__file__).resolve().parents[2]


def _git(*words: str) -> str:
    return subprocess.run(("git", *words), cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


@contextlib.contextmanager
def _checkout(revision: str) -> Iterator[Path]:
    """A revision's files in a folder of their own, gone afterwards; the repository does not know of them, whatever kills this process."""
    with tempfile.TemporaryDirectory(prefix="dtsim-replay-") as folder:
        files = subprocess.run(("git", "archive", revision), cwd=ROOT, check=True, capture_output=True).stdout
        tree = Path(folder) / "base"
        with tarfile.open(fileobj=io.BytesIO(files)) as archive:
            archive.extractall(tree, filter="data")
        yield tree


def of_base(revision: str, words: str, processes: int) -> Digests:
    """Return the digests of a revision: from build/replay, or made in a checkout of it."""
    commit = _git("rev-parse", revision)
    kept = ROOT / "build" / "replay" / f"{commit}.json"
    if kept.exists():
        known: Digests = json.loads(kept.read_text())
        return {name: found for name, found in known.items() if words in name}
    with _checkout(commit) as tree:
        found = _in_tree(tree, words, processes)
    if not words:
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(found))
    return found


def _in_tree(tree: Path, words: str, processes: int) -> Digests:
    """Run the base's own replay, on the cases of this tree."""
    if not (tree / "tests/replay/__main__.py").exists():
        raise SystemExit(f"{tree.name} has no replay: choose a base that has tests/replay/__main__.py")
    for data in ("plans.jsonl", "refusals.jsonl"):
        (tree / "tests/replay" / data).write_bytes((ROOT / "tests/replay" / data).read_bytes())
    out = tree / "digests.json"
    command = [sys.executable, "-m", "tests.replay", "--collect", str(out), "--only", words, "-j", str(processes)]
    subprocess.run(command, cwd=tree, check=True, env={**os.environ, "PYTHONPATH": str(tree)})
    found: Digests = json.loads(out.read_text())
    return found


def differences(base: Digests, here: Digests) -> Iterator[tuple[str, str]]:
    """Yield (case, column) wherever both trees have a column and it differs, or only one has the case."""
    for name in sorted(set(base) ^ set(here)):
        yield name, "only here" if name in here else "only in the base"
    for name in here.keys() & base.keys():
        for column in sorted(set(base[name]) & set(here[name])):
            if base[name][column] != here[name][column]:
                yield name, column
        for special in ("refused", "figures"):
            if (special in base[name]) != (special in here[name]):
                yield name, special


def report(base: Digests, here: Digests) -> int:
    """Print what differs, by column, with the first cases; return how many cases do."""
    by_column: dict[str, list[str]] = defaultdict(list)
    for name, column in differences(base, here):
        by_column[column].append(name)
    cases = {name for names in by_column.values() for name in names}
    known, seen = ({column for found in tree.values() for column in found} for tree in (base, here))
    for words, columns in (("gone", known - seen), ("new", seen - known)):
        if columns:
            print(f"columns that are {words}: {', '.join(sorted(columns))}")
    for column, names in sorted(by_column.items(), key=lambda one: -len(one[1])):
        kinds = Counter(name.split()[0] for name in names)
        print(f"{column}: {len(names)} cases ({', '.join(f'{n} {kind}' for kind, n in kinds.items())})")
        for name in names[:3]:
            print(f"    {name}")
            if column in ("refused", "figures"):
                for said, tree in (("base", base), ("here", here)):
                    print(f"        {said}: {tree[name].get(column, 'nothing')[:400]}")
    print(f"{len(cases)} of {len(here)} cases differ" if cases else f"all {len(here)} cases are the same")
    return len(cases)


def show(base: str, words: str) -> None:
    """Print the first differing value of each column of the first case that holds the words."""
    with _checkout(base) as tree:
        sides = [_values(root, words) for root in (tree, ROOT)]
    for column in sorted(set(sides[0]) & set(sides[1])):
        for i, (a, b) in enumerate(zip(sides[0][column], sides[1][column], strict=False)):
            if a != b:
                print(f"{column}, row {i}: {a[:300]} -> {b[:300]}")
                break
        else:
            if len(sides[0][column]) != len(sides[1][column]):
                print(f"{column}: {len(sides[0][column])} rows -> {len(sides[1][column])}")


def _values(root: Path, words: str) -> dict[str, list[str]]:
    out = subprocess.run(
        [sys.executable, "-m", "tests.replay", "--values", "--only", words],
        cwd=root, check=True, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(root)},
    ).stdout  # fmt: skip
    found: dict[str, list[str]] = json.loads(out)
    return found


def _print_values(words: str) -> None:
    from tests.replay.cases import cases
    from tests.replay.digest import rows
    from tests.replay.recorder import Recorder

    work = next(work for name, work in cases() if words in name)
    made, refused = Recorder().parts(work)
    found: dict[str, Any] = {"refused": [refused]}
    if made:
        found |= rows({k: v for k, v in made[-1].items() if k != "_"})
    print(json.dumps(found))


def main() -> None:
    """Answer the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.replay", description=__doc__.split("\n")[0])
    parser.add_argument("--base", default="HEAD")
    parser.add_argument("--only", default="")
    parser.add_argument("-j", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--collect", type=Path, help="write this tree's digests to a file and stop")
    parser.add_argument("--values", action="store_true", help="print the values of the first case and stop")
    parser.add_argument("--write-figures", action="store_true")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that folders are cleared away
    if asked.values:
        _print_values(asked.only)
        return
    here = collect(asked.only, asked.j)
    if asked.collect:
        asked.collect.write_text(json.dumps(here))
        return
    if asked.write_figures:
        from tests.replay.figures import write_figures

        write_figures(here)
        return
    differ = report(of_base(asked.base, asked.only, asked.j), here)
    if differ and asked.only:
        show(asked.base, asked.only)
    sys.exit(1 if differ else 0)


if __name__ == "__main__":
    main()
