"""Refusals of plans, message by message: refusals.txt is read, its settings are predicted again, and every rule is met."""

from __future__ import annotations

from tests.golden.refusals import parsed, read, refusal, sites, written


def test_every_plan_is_refused_as_recorded() -> None:
    recorded = read()
    found = {line: one.message if (one := refusal(parsed(line))) else "" for line in recorded}

    assert recorded == found


def test_the_record_reaches_everything_that_refuses_a_plan() -> None:
    reached = {one.site for line in read() if (one := refusal(parsed(line)))}

    assert len(sites()) > 10
    assert [] == [site for site in sites() if site not in reached]


def test_a_line_is_written_as_it_is_read() -> None:
    assert all(line == written(parsed(line)) for line in read())
