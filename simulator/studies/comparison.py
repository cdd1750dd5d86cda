"""Several settings of one job side by side: schedules, ZeRO stages, or any key."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from simulator.energy.step_power import StepPower, step_power
from simulator.errors import SimulatorError, SpecError, UnknownNameError
from simulator.job import Job, parse_value
from simulator.lowering import resolve_on
from simulator.program.program import CATEGORIES, TRANSFER
from simulator.report.columns import COLUMNS, account_column
from simulator.report.frames import Record, Records, Tabular
from simulator.report.prediction import Prediction
from simulator.report.schema import SCHEMA_VERSION
from simulator.report.table import Section, Table, amount, percent, refusals
from simulator.schedules import SCHEDULES
from simulator.schedules.base import Shape
from simulator.search.candidate import fit_probability, fit_words
from simulator.simulation import simulate_job
from simulator.studies.changes import Change, changed, chunks_for
from simulator.studies.variants import AS_IT_IS, VariantLoader, named
from simulator.units import in_unit, parse, show

__all__ = ["SHORT_COLUMNS", "Comparison", "PipelineFacts", "Row", "beside", "compare", "job_shape"]

SHORT_COLUMNS = {
    "step": "step_time_s",
    "time": "step_time_s",
    "tokens/s": "tokens_per_second",
    "bubble": "bubble_fraction",
    "comm": "exposed_communication_s",
    "memory": "peak_memory_bytes",
    "price": "price_usd_per_million_tokens",
    "energy": "energy_j_per_token",
}
"""What may be written for a longer column."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineFacts:
    """What a schedule costs besides time.

    Args:
        ranks: pipeline ranks.
        activations: bytes on the rank that holds most of them at its peak.
        weight_copies: copies of its share of the weights on the fullest rank, lanes and versions multiplied.
        messages: transfers between pipeline ranks in one step of one replica.
        message_bytes: their bytes, one tensor-parallel rank's share.
    """

    ranks: int
    activations: float
    weight_copies: int
    messages: int
    message_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Row:
    """One variant: its settings, and its prediction or the reason why there is none."""

    name: str
    settings: tuple[str, ...]
    prediction: Prediction | None
    reason: str = ""
    pipeline: PipelineFacts | None = None
    power: StepPower | None = None
    price: float | None = None
    """Of a step [$]; None = the cluster names no price."""

    @property
    def price_per_million_tokens(self) -> float | None:
        """In dollars; None without a price."""
        tokens = 0 if self.prediction is None else self.prediction.tokens
        return None if self.price is None else self.price / in_unit(tokens, "M", "tokens")

    @property
    def verdict(self) -> str:
        """Whether it fits, how surely, and else what is missing."""
        p = self.prediction
        if p is None:
            return "cannot be"
        if not p.fits:
            return _too_much(p)
        return fit_words(fit_probability(p))

    def record(self) -> dict[str, Any]:
        """Return the row of a table."""
        pairs = (setting.partition("=") for setting in self.settings)
        asked = {key.strip(): _plain(parse_value(text.strip())) for key, _, text in pairs}
        head: Record = {"name": self.name, **asked, "reason": self.reason}
        if self.prediction is None:
            return dict(head)
        facts: Record = {}
        if self.pipeline is not None:
            facts = {
                "activations_bytes_fullest": self.pipeline.activations,
                "weight_copies": self.pipeline.weight_copies,
                "messages": self.pipeline.messages,
                "message_bytes": self.pipeline.message_bytes,
            }
        return {
            **head,
            **self.prediction.record(),
            "fit_probability": fit_probability(self.prediction),
            "price_usd_per_step": self.price,
            "price_usd_per_million_tokens": self.price_per_million_tokens,
            "energy_j_per_token": None if self.power is None else self.power.energy_per_token,
            **facts,
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the row as JSON: the keys of `dtsim run`, or `reason`."""
        head: dict[str, object] = {"name": self.name, "settings": list(self.settings), "reason": self.reason or None}
        if self.prediction is None:
            return head
        answer = self.prediction.to_dict()
        answer.pop("schema_version")
        facts: dict[str, object] = {} if self.pipeline is None else {"pipeline": asdict(self.pipeline)}
        facts |= {} if self.power is None else {"power": self.power.to_dict()}
        facts |= {"tokens_per_second": self.prediction.tokens / self.prediction.step_time}
        facts |= {"price_usd_per_step": self.price, "price_usd_per_million_tokens": self.price_per_million_tokens}
        facts |= {"fit_probability": fit_probability(self.prediction)}
        return head | {"peak_memory_fullest_bytes": self.prediction.peak_memory} | facts | answer


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Comparison(Tabular):
    """All variants, in the order asked for.

    Args:
        name: of the job.
        what: what it is compared over, for titles.
        left_out: how many rows `fitting` left out.
    """

    name: str
    rows: tuple[Row, ...]
    what: str = ""
    left_out: int = 0

    @property
    def title(self) -> str:
        """What was run."""
        return f"{self.name}, by {self.what}" if self.what else self.name

    def tables(self) -> dict[str, Records]:
        """`variants`: a row per variant; `breakdown`: seconds by account, mean over ranks."""
        return {"variants": lambda: [row.record() for row in self.rows], "breakdown": self._breakdown}

    def _breakdown(self) -> list[Record]:
        return [
            {"name": name, "step_time_s": p.step_time, **{account_column(a): s for a, s in p.breakdown.items()}}
            for name, p in self.predicted
        ]

    def sorted_by(self, column: str) -> Comparison:
        """Return the same with the rows one would rather have first; those without such a number last.

        Args:
            column: of the table `variants`, or short for one (`SHORT_COLUMNS`).

        Raises:
            UnknownNameError: no such column.
            SpecError: no row has a value there.
        """
        name = SHORT_COLUMNS.get(column, column)
        records = [row.record() for row in self.rows]
        known = dict.fromkeys(key for record in records for key in record)
        if name not in known:
            raise UnknownNameError("column to sort by", column, [*SHORT_COLUMNS, *known])
        values = [record.get(name) for record in records]
        if all(value is None for value in values):
            way = ": --set cluster.price_per_gpu_hour='2.5 $/h'" if name.startswith("price") else ""
            raise SpecError(f"--sort {column}: no row has a value there{way}")
        turned = -1.0 if name in COLUMNS and COLUMNS[name].better == "more" else 1.0

        def key(place: int) -> tuple[bool, float, str]:
            value = values[place]
            return value is None, turned * value if isinstance(value, int | float) else 0.0, str(value)

        return replace(self, rows=tuple(self.rows[place] for place in sorted(range(len(values)), key=key)))

    def fitting(self) -> Comparison:
        """Return the same with the rows that fit alone."""
        kept = tuple(row for row in self.rows if row.prediction is not None and row.prediction.fits)
        return replace(self, rows=kept, left_out=self.left_out + len(self.rows) - len(kept))

    @property
    def predicted(self) -> list[tuple[str, Prediction]]:
        """(name, prediction) of the variants that can be."""
        return [(row.name, row.prediction) for row in self.rows if row.prediction is not None]

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON answer of `dtsim compare`."""
        from simulator import __version__

        facts = self.predicted[0][1].provenance if self.predicted else {}
        return {
            "schema_version": SCHEMA_VERSION,
            "job": self.name,
            "rows": [row.to_dict() for row in self.rows],
            "provenance": {"version": __version__}
            | {k: facts[k] for k in ("cluster", "gpu", "engine", "calibration") if k in facts},
        }

    def sections(self) -> list[Section]:
        """Return table and refusals to read."""
        best = max((p for _, p in self.predicted if p.fits), key=_rate, default=None)
        lines = []
        for row in self.rows:
            p = row.prediction
            if p is None:
                continue
            lines.append(
                (
                    row.name,
                    show(p.step_time, "s"),
                    f"{show(p.low, 's')} to {show(p.high, 's')}",
                    f"{_rate(p):,.0f}",
                    percent(p.mfu),
                    percent(p.bubble_fraction),
                    show(sum(p.exposed_communication.values()), "s"),
                    show(p.peak_memory, "B"),
                    "" if row.price_per_million_tokens is None else f"{amount(row.price_per_million_tokens)} $",
                    "" if row.power is None else show(row.power.energy_per_token, "J"),
                    row.verdict + _pace(p, best),
                )
            )
        unit = self.predicted[0][1].workload.unit if self.predicted else "token"
        headings = (
            "", "step", "80 % band", f"{unit}s/s", "MFU", "bubble", "exposed comm", "fullest rank", f"price/M{unit}", f"energy/{unit}", ""
        )  # fmt: skip
        used = [i for i in range(len(headings)) if any(line[i] for line in lines)]
        table = Table(
            headings=tuple(headings[i] for i in used),
            rows=tuple(tuple(line[i] for i in used) for line in lines),
            left=(0, len(used) - 1),
        )
        left_out = (f"left out: {self.left_out} that do not fit or cannot be",) if self.left_out else ()
        out = [Section(title=f"{self.title}, side by side", table=table, below=left_out), *self._pipelines()]
        told = refusals([(row.name, row.reason) for row in self.rows if row.prediction is None])
        return [*out, Section(title="cannot be", lines=told)] if told else out

    def _pipelines(self) -> list[Section]:
        """Return the table of schedules, where there are pipelines."""
        lines = [
            (
                row.name,
                percent(row.prediction.bubble_fraction),
                percent(row.prediction.bubble_overhead),
                show(row.pipeline.activations, "B"),
                str(row.pipeline.weight_copies),
                f"{row.pipeline.messages} of {show(row.pipeline.message_bytes / row.pipeline.messages, 'B')}"
                if row.pipeline.messages
                else "0",
                show(row.prediction.peak_memory, "B"),
            )
            for row in self.rows
            if row.prediction is not None and row.pipeline is not None
        ]
        headings = ("", "bubble / step", "bubble / rest", "activations", "weight copies", "messages", "fullest rank")
        return [Section(title="pipelines", table=Table(headings=headings, rows=tuple(lines)))] if lines else []


def _rate(p: Prediction) -> float:
    """Tokens per second: what is compared, since batches may differ."""
    return p.tokens / p.step_time


def _pace(p: Prediction, best: Prediction | None) -> str:
    """Whether it is the quickest of those that fit, or not to be told apart from it: its time for as many tokens is in that one's band.

    Of the same code on the same machine the part of the band that both have in common is left out, as a search leaves it out.
    """
    if best is None or not p.fits:
        return ""
    if p is best:
        return ", quickest"
    same = (p.made.get("framework"), p.cluster.machine) == (best.made.get("framework"), best.cluster.machine)
    slowest = best.alike if same else best.high
    return ", as quick within the band" if _rate(p) * slowest >= best.tokens else ""


def _plain(value: object) -> object:
    """A setting's value as a cell."""
    return value if isinstance(value, str | int | float) else str(value)


def _too_much(p: Prediction) -> str:
    """What is missing, on the GPU or in a tier below."""
    over = p.peak_memory - p.capacity
    if over > 0:
        return f"{show(over, 'B')} too much"
    return next(f"{show(tier.over, 'B')} too much on {tier.place}" for tier in p.tiers if tier.over)


def compare(
    job: str | None,
    asked: Sequence[tuple[str, ...]],
    *,
    model: str | None = None,
    cluster: str | None = None,
    engine: str = "compiled",
) -> Comparison:
    """Return every variant simulated; one that cannot be becomes a row with its reason.

    Args:
        job: a job's name or file; or None with a model and a cluster.
        asked: settings of each variant, from `variants`.
        model, cluster: names, without a job.
        engine: "compiled" or "simpy".

    Raises:
        SpecError: the job itself cannot be read.
    """

    loader = VariantLoader(job, model, cluster)
    hour = parse("1 h", "s")
    like = loader.like(asked)
    rows = []
    for name, settings in zip(named(asked), asked, strict=True):
        try:
            variant, note = _with_fitting_chunks(loader.load(settings, like), settings)
            prediction = simulate_job(variant, engine)
            facts = _pipeline_facts(variant, prediction)
            power = step_power(prediction, variant.cluster, variant.power)
            hourly = variant.cluster.price_per_gpu_hour
            price = None if hourly is None else hourly * prediction.world_size * prediction.step_time / hour
            made = Row(
                name=name + note, settings=settings, prediction=prediction, pipeline=facts, power=power, price=price
            )
            rows.append(made)
        except SimulatorError as error:
            rows.append(Row(name=name, settings=settings, prediction=None, reason=str(error)))
    return Comparison(name=loader.base.name, rows=tuple(rows), what=_compared(asked))


def beside(parts: Mapping[str, Comparison]) -> Comparison:
    """Return the comparisons of several jobs as one, each row under its job's name.

    Args:
        parts: by what each job was asked for as: the name of a row whose job has another's name.

    Raises:
        SpecError: they count in several units, so that none is quicker.
    """
    units = sorted({p.workload.unit for part in parts.values() for _, p in part.predicted})
    if len(units) > 1:
        raise SpecError(
            f"jobs side by side count the same, but these count {' and '.join(units)}. Way out: each by itself"
        )
    own = Counter(part.name for part in parts.values())
    names = [part.name if own[part.name] == 1 else asked for asked, part in parts.items()]
    rows = tuple(
        replace(row, name=name if row.name == AS_IT_IS else f"{name}, {row.name}")
        for name, part in zip(names, parts.values(), strict=True)
        for row in part.rows
    )
    title = ", ".join(names[:-1]) + f" and {names[-1]}"
    return Comparison(name=title, rows=rows, what=next(iter(parts.values())).what)


def _compared(asked: Sequence[tuple[str, ...]]) -> str:
    """The settings in which variants differ: schedule, zero_stage."""
    values: dict[str, set[str]] = {}
    for setting in (setting for settings in asked for setting in settings):
        key, _, value = setting.partition("=")
        values.setdefault(key.strip(), set()).add(value)
    varied = (key.removesuffix(".name") for key, found in values.items() if len(found) > 1)
    return ", ".join(key.rpartition(".")[2] for key in varied)


def _with_fitting_chunks(job: Job, settings: Sequence[str]) -> tuple[Job, str]:
    """Return a variant and a note: a schedule that cannot take the job's chunks per rank gets those it can, unless
    they were asked for."""
    keys = [setting.partition("=")[0].strip() for setting in settings]
    if "plan.schedule" not in keys or "plan.chunks_per_rank" in keys:
        return job, ""
    plan = job.plan
    replicas = plan.data_parallel or max(1, job.cluster.world_size // plan.model_parallel_size)
    microbatches = max(1, job.workload.global_batch_size // (replicas * plan.microbatch_size))
    shape = Shape(plan.pipeline_parallel, microbatches, plan.chunks_per_rank)
    chunks = chunks_for(SCHEDULES.get(str(plan.schedule)), shape)
    if chunks is None or chunks == plan.chunks_per_rank:
        return job, ""
    change = Change(name="--schedule", plan={"chunks_per_rank": chunks, "layer_split": None})
    return changed(job, change), f" (chunks_per_rank {chunks})"


def job_shape(job: Job) -> Shape:
    """Return the pipeline ranks, microbatches and chunks per rank of a job.

    Raises:
        PlanError: the plan cannot be.
    """
    resolved = resolve_on(job.workload, job.plan, job.cluster)
    return Shape(resolved.pipeline_parallel, resolved.microbatches, resolved.chunks_per_rank)


def _pipeline_facts(job: Job, prediction: Prediction) -> PipelineFacts | None:
    """Return what the schedule of a job costs; None without pipeline ranks."""
    if job.plan.pipeline_parallel < 2:
        return None
    schedule, shape = SCHEDULES.get(prediction.provenance["schedule"]), job_shape(job)
    stages = prediction.provenance.get("stages")
    versions = [stage["weight_versions"] for stage in stages] if stages else schedule.weight_versions(shape)
    copies = schedule.placement(shape).weight_copies() * versions
    program = prediction.program
    one = program.rank < dict(program.axes).get("pp", program.ranks)  # the first class of replicas, where they differ
    sent = program.messages[(program.kind == TRANSFER) & one & (program.step == 0)]
    return PipelineFacts(
        ranks=shape.ranks,
        activations=float(prediction.memory.by_category[:, CATEGORIES.index("activations")].max()),
        weight_copies=int(copies.max()),
        messages=len(sent),
        message_bytes=float(sent.sum()),
    )
