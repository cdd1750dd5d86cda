"""Bayesian: a tree-structured Parzen estimator proposes plans from what the ones before took (optuna, `pip install 'dtsim[bayesian]'`)."""

from __future__ import annotations

from simulator.errors import SpecError
from simulator.search.run import Run
from simulator.search.strategies.base import Strategy

__all__ = ["Bayesian"]

_PROPOSED = 20
"""Plans proposed for every one that may be simulated: most spaces refuse most of their plans."""


class Bayesian(Strategy):
    """Tree-structured Parzen estimator."""

    name = "bayesian"
    aliases = ("tpe", "optuna")
    source = "Bergstra et al., Algorithms for Hyper-Parameter Optimization (2011); Akiba et al., Optuna (2019)"
    proves = "nothing: other plans may be better"
    draws = True

    def search(self, run: Run, tries: int, seed: int) -> None:
        """See `Strategy.search`."""
        try:
            import optuna
        except ImportError:
            raise SpecError("strategy 'bayesian' needs optuna. Way out: pip install 'dtsim[bayesian]'") from None
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed, multivariate=True))
        known: dict[int, float | None] = {}
        for _ in range(_PROPOSED * tries):
            if run.over or len(run.candidates) >= tries or len(known) == run.space.size:
                break
            trial = study.ask()
            places = {
                field: trial.suggest_categorical(field, list(range(len(values))))
                for field, values in run.space.ranges.items()
            }
            values = {field: run.space.ranges[field][place] for field, place in places.items()}
            number = run.space.number(values)
            if number not in known:
                known[number] = self._value(run, number)
            found = known[number]
            if found is None:
                study.tell(trial, state=optuna.trial.TrialState.FAIL)
            else:
                study.tell(trial, found)
        run.complete = not run.over

    def _value(self, run: Run, number: int) -> float | None:
        """What a plan takes, more where it lacks memory; None where it cannot be."""
        made = run.simulate(list(run.looks([number])))
        return run.weighed(made[0]) if made else None
