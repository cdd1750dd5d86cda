"""Every refusal of a plan, as text: the settings that differ from a default plan, then the message.

`python -m tests.golden.refusals` predicts the settings of refusals.txt again and writes their messages anew; `--search` first looks for
plans that reach a refusal which no line reaches yet, by settings drawn at random, each cut down to what the message needs.
The default is a GPT of 8 layers on one dgx_h100, with a batch that the replicas divide.  A key is a field of the plan, or
"family" (tests/properties/test_every_combination.py), "nodes", "world", or "workload." or "model." and a field.
"""

from __future__ import annotations

import ast
import functools
import json
import random
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from simulator.errors import PlanError, SimulatorError
from simulator.lowering import lower_resolved
from simulator.lowering.resolve.resolved_plan import resolve
from simulator.options.option import Need, declared
from simulator.plan.plan import Plan
from simulator.workload.model import Model
from simulator.workload.workload import Workload
from tests.package_sources import package_sources
from tests.properties.test_every_combination import model_of
from tests.replay.make_plans import FIELDS, drawn

__all__ = ["FILE", "Refusal", "Site", "read", "refusal", "sites", "written"]

FILE = Path(__file__).parent / "refusals.txt"
ROOMS = ("plan", "lowering")
NO_PLANS = ("simulator/plan/mesh.py", "simulator/lowering/abstract.py")
"""Files whose refusals are about arguments of a call, which no plan reaches."""
Settings = dict[str, Any]


class Site(NamedTuple):
    """A statement that refuses: its file, and its first and last line."""

    file: str
    first: int
    last: int


class Refusal(NamedTuple):
    """A message, and what gave it: a statement, or what a declared choice needs."""

    message: str
    site: Site | Need | None


@functools.cache
def sites() -> tuple[Site | Need, ...]:
    """Everything that refuses a plan: statements that raise a PlanError of their own, and the needs of declared choices."""
    needs = dict.fromkeys(need for option in declared(Plan).values() for need in option.needs)
    return *sorted(site for source in package_sources() for site in _sites(source)), *needs


def _sites(source: Any) -> Iterator[Site]:
    if source.module[1] not in ROOMS or source.place in NO_PLANS:
        return
    shared = [f for f in source.nodes if isinstance(f, ast.FunctionDef) and f.name == "refuse"]
    inside = {id(node) for function in shared for node in ast.walk(function)}
    for node in source.nodes:
        if id(node) in inside:
            continue
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            if ast.unparse(node.exc.func) in ("PlanError", "refusal"):
                yield Site(source.place, node.lineno, node.end_lineno or node.lineno)
        elif (
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and ast.unparse(node.value.func) == "refuse"
        ):
            yield Site(source.place, node.lineno, node.end_lineno or node.lineno)


def refusal(settings: Settings, lowers: bool = True) -> Refusal | None:
    """Return how a plan of these settings is refused, or None; without `lowers` by the rules that stand before the rows alone."""
    plan = {k: v for k, v in settings.items() if "." not in k and k not in ("family", "nodes", "world")}
    gpus = 8 * settings.get("nodes", 1)
    inner = [plan.get(f"{axis}_parallel", 1) for axis in ("tensor", "context", "pipeline")]
    replicas = max(1, gpus // (inner[0] * inner[1] * inner[2]))
    batch = replicas * plan.get("microbatch_size", 1) * 2 * inner[2]
    work = {"sequence_length": 256, "global_batch_size": batch, "precision": "bf16"}
    try:
        model = model_of(settings.get("family", "gpt"))
        if changes := _table(settings, "model"):
            model = Model.model_validate({**model.model_dump(), **changes})
        workload = Workload(model=model, **{**work, **_table(settings, "workload")})
        resolved = resolve(workload, Plan.model_validate(plan), settings.get("world", gpus))
        if lowers:
            lower_resolved(workload, resolved)
    except PlanError as error:
        return Refusal(str(error), _site(error))
    except (SimulatorError, ValueError):
        return None
    return None


def _table(settings: Settings, name: str) -> Settings:
    return {k.partition(".")[2]: v for k, v in settings.items() if k.startswith(f"{name}.")}


def _site(error: PlanError) -> Site | Need | None:
    frames = list(traceback.walk_tb(error.__traceback__))
    for frame, line in reversed(frames):
        need, file = frame.f_locals.get("need"), frame.f_code.co_filename
        if isinstance(need, Need):
            return need
        for site in sites():
            if isinstance(site, Site) and file.endswith(site.file) and site.first <= line <= site.last:
                return site
    return None


def read() -> dict[str, str]:
    """Return settings as written -> message."""
    blocks = FILE.read_text().strip().split("\n\n") if FILE.exists() else []
    return {block.split("\n")[0]: "\n".join(block.split("\n")[1:]).strip() for block in blocks}


def parsed(line: str) -> Settings:
    """Return the settings of a line: `key=value` with values as in JSON, two spaces apart."""
    return {key: json.loads(value) for key, _, value in (one.partition("=") for one in line.split("  "))}


def written(settings: Settings) -> str:
    """Return settings as a line."""
    return "  ".join(f"{key}={json.dumps(value)}" for key, value in sorted(settings.items()))


def smallest(settings: Settings, found: Refusal) -> Settings:
    """Return as few of the settings as give the same refusal, by the same statement."""
    for key in sorted(settings, reverse=True):
        fewer = {k: v for k, v in settings.items() if k != key}
        again = refusal(fewer, lowers=False)
        if again and again.site == found.site:
            return smallest(fewer, again)
    return settings


def _drawn(chance: random.Random) -> Settings:
    choices = [(name, chance.randrange(len(many))) for name, many in FIELDS.items()]
    case = drawn(chance, chance.sample(choices, chance.choice((1, 2, 2, 3, 4))))
    settings = {"family": case["family"], "nodes": case["nodes"], **case["plan"]}
    return settings | {f"workload.{k}": v for k, v in case["workload"].items() if k in ("precision", "document_length")}


def search(tries: int) -> Iterator[Settings]:
    """Yield settings that reach a statement which no line of the file reaches."""
    known = {found.site for line in read() if (found := refusal(parsed(line)))}
    chance = random.Random(3)
    for _ in range(tries):
        settings = _drawn(chance)
        found = refusal(settings, lowers=False)
        if found and found.site and found.site not in known:
            known.add(found.site)
            yield smallest(settings, found)


def main() -> None:
    """Write the file anew."""
    lines = set(read())
    if "--search" in sys.argv:
        lines |= {written(settings) for settings in search(20_000)}
    found = {line: refusal(parsed(line)) for line in sorted(lines)}
    FILE.write_text("\n\n".join(f"{line}\n    {one.message}" for line, one in found.items() if one) + "\n")
    reached = {one.site for one in found.values() if one}
    for line in [line for line, one in found.items() if not one]:
        print("accepted now, and left out:", line)
    for site in [site for site in sites() if site not in reached]:
        print("reached by no line:", site)
    print(f"{len(found)} refusals reach {len(reached & set(sites()))} of {len(sites())} rules")


if __name__ == "__main__":
    main()
