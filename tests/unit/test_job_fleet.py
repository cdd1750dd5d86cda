"""A fleet that nobody knows is refused where the job is read."""

from tests.command import Dtsim


def test_a_job_with_an_unknown_fleet_is_refused_by_every_verb(dtsim: Dtsim) -> None:
    for verb in ("run", "explain", "goodput"):
        code, _, said = dtsim(verb, "gpt2_124m_1gpu", "--set", "reliability.fleet=nonsense")
        assert (2, True) == (code, "no record of failures 'nonsense'. Known: " in said)
