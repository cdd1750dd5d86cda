"""What a shell completes behind `dtsim`: names of jobs, models, clusters, schedules and settings, from the data files.

`dtsim --install-completion` teaches the shell; typer asks these functions with the word begun.
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["clusters", "jobs", "models", "schedules", "settings"]


def jobs(incomplete: str) -> list[str]:
    """Return the jobs that begin so.

    >>> jobs("gpt3_175")
    ['gpt3_175b']
    """
    return _begin(incomplete, _names("jobs"))


def models(incomplete: str) -> list[str]:
    """Return the models that begin so."""
    return _begin(incomplete, _names("models"))


def clusters(incomplete: str) -> list[str]:
    """Return the clusters that begin so."""
    return _begin(incomplete, _names("clusters"))


def schedules(incomplete: str) -> list[str]:
    """Return the schedules that begin as the last of a list does, behind the others.

    >>> schedules("1f1b,zb_h")
    ['1f1b,zb_h1', '1f1b,zb_h2']
    """
    from simulator.schedules import SCHEDULES

    before, comma, last = incomplete.rpartition(",")
    return [before + comma + name for name in _begin(last, (schedule.name for schedule in SCHEDULES))]


def settings(incomplete: str) -> list[str]:
    """Return the settings of a job that begin so, ready for a value.

    >>> settings("plan.zero_s")
    ['plan.zero_stage=']
    """
    from simulator.job import setting_keys

    return _begin(incomplete, (f"{key}=" for key in sorted(setting_keys())))


def _names(kind: str) -> list[str]:
    from simulator.specs import names

    return names(kind)


def _begin(incomplete: str, words: Iterable[str]) -> list[str]:
    return [word for word in words if word.startswith(incomplete)]
