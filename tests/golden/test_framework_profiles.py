"""Framework profiles as they are read, against framework_profiles.csv: every value that is not the field's default.

A profile may take most of its values from others; a change of one shows here in all that inherit it.  Files that came later, and
fields that the table does not know, are not judged.  `python tests/golden/test_framework_profiles.py` writes the table anew.
"""

from __future__ import annotations

import csv
import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from simulator.plan.framework import Framework, load_framework
from simulator.specs import ExtendingSpec, names

FILE = Path(__file__).with_name("framework_profiles.csv")
FIELDS = ["aliases", *(name for name in Framework.model_fields if name not in ExtendingSpec.model_fields)]


def resolved(name: str) -> Iterator[tuple[str, str]]:
    """Yield (field, value) of a profile where it is not the field's default: SI numbers, words as they are."""
    profile = load_framework(name)
    for field in FIELDS:
        value = getattr(profile, field)
        if value != Framework.model_fields[field].default:
            yield field, value if isinstance(value, str) else json.dumps(value)


def recorded() -> dict[str, dict[str, str]]:
    """Profile -> field -> value."""
    found: dict[str, dict[str, str]] = defaultdict(dict)
    with FILE.open(newline="") as file:
        for row in csv.DictReader(file):
            found[row["profile"]][row["field"]] = row["value"]
    return dict(found)


RECORDED = recorded() if FILE.exists() else {}


@pytest.mark.parametrize("name", RECORDED)
def test_a_profile_has_the_values_it_had(name: str) -> None:
    before, now = RECORDED[name], dict(resolved(name))
    lines = [
        f"{name}.{field}: {before.get(field, 'default')} -> {now.get(field, 'default')}"
        for field in FIELDS
        if before.get(field) != now.get(field)
    ]
    assert [] == lines


if __name__ == "__main__":
    with FILE.open("w", newline="") as out:
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(["profile", "field", "value"])
        writer.writerows((name, *pair) for name in names("frameworks") for pair in resolved(name))
    sys.exit(0)
