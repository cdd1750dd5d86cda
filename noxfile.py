"""The steps of checking a change, each a session: `nox -l` lists them, `nox -s lint` runs one, `nox` all that CI runs.

They run in the environment that nox itself stands in (`pip install -e '.[test]'`); .ci/run makes a fresh one first.
Words after `--` go to pytest: `nox -s tests -- tests/unit -k collective`.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile

import nox

nox.options.default_venv_backend = "none"
nox.options.stop_on_first_error = True
nox.options.sessions = ["lint", "types", "tests", "slow", "benchmarks", "notebooks", "docs"]


def python(session: nox.Session, *arguments: str) -> None:
    """Run a module with the Python that runs nox."""
    session.run(sys.executable, "-m", *arguments)


@nox.session
def lint(session: nox.Session) -> None:
    """Ruff's rules and format (a second)."""
    python(session, "ruff", "check", ".")
    python(session, "ruff", "format", "--check", ".")


@nox.session
def types(session: nox.Session) -> None:
    """Mypy over the package (half a minute, less when little changed)."""
    python(session, "mypy")


@nox.session
def house(session: nox.Session) -> None:
    """The rules of the house: floors, names, units, sources, pages (ten seconds)."""
    python(session, "pytest", "-n", "0", "tests/architecture", *session.posargs)


def shuffled(session: nox.Session) -> tuple[str, ...]:
    """Options for an order drawn anew: no test may need another to have run before it.  SEED repeats an order that was printed."""
    seed = int(os.environ.get("SEED", random.randrange(2**15)))
    session.log(f"random order: SEED={seed}")
    return "-n", str(1 + seed % 4), "--random-order-bucket=global", f"--random-order-seed={seed}"


@nox.session
def tests(session: nox.Session) -> None:
    """The quick suite, as the README has it (three minutes on two cores); with SHUFFLE=1 once more in random order."""
    python(session, "pytest", "-n", "2", *session.posargs)
    if os.environ.get("SHUFFLE"):
        python(session, "pytest", *shuffled(session), *session.posargs)


@nox.session
def explore(session: nox.Session) -> None:
    """The properties with a thousand inputs drawn anew, beside those that every run has (half an hour); not part of CI."""
    session.env["HYPOTHESIS_PROFILE"] = "explore"
    python(session, "pytest", "-n", "2", "tests/properties", "tests/differential", *session.posargs)


@nox.session
def slow(session: nox.Session) -> None:
    """The tests that take more than a few seconds, in random order."""
    python(session, "pytest", *shuffled(session), "-n", "2", "-m", "slow", *session.posargs)


@nox.session
def benchmarks(session: nox.Session) -> None:
    """Speeds, printed and never judged by seconds."""
    python(session, "pytest", "-s", "-m", "benchmark", *session.posargs)


@nox.session
def notebooks(session: nox.Session) -> None:
    """The lessons, copied to an empty folder outside the repository as a reader would, and run there."""
    with tempfile.TemporaryDirectory() as folder:
        python(session, "simulator", "notebooks", f"{folder}/lessons")
        options = ("-o", "addopts=", "-q", "--nbmake", "--nbmake-timeout=300", "-p", "no:cacheprovider")
        python(session, "pytest", *options, f"{folder}/lessons")


@nox.session(venv_backend="venv")
def capture(session: nox.Session) -> None:
    """Real training code, run and kept (tests/data/recordings), beside our lowering of it, in an environment of its own with PyTorch."""
    session.install("-e", ".[test]", "-r", "tests/conformance/requirements.txt")
    folder = os.path.join(session.virtualenv.location, "megatron-core-0.13.1")
    if not os.path.exists(folder):
        session.install("--no-deps", "--target", folder, "megatron-core==0.13.1")
    session.run(
        *(
            "python",
            "-m",
            "pytest",
            "-n",
            "2",
            "--dist",
            "loadfile",
            "-m",
            "slow",
            "tests/conformance",
            *session.posargs,
        ),
        env={"DTSIM_RECORD": "1"},
    )


@nox.session
def docs(session: nox.Session) -> None:
    """The documentation as a site under build/site; warnings (dead links, pages without a place) are errors."""
    for page in ("commands_page", "frames_page", "json_page", "options_page"):
        python(session, f"tests.golden.{page}")
    python(session, "zensical", "build", "--strict", "--clean")


@nox.session
def tables(session: nox.Session) -> None:
    """Write the table of runs in docs/tables.md anew (two minutes)."""
    python(session, "tests.validation.test_tables")
