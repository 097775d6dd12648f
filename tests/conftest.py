"""Copies of the checkout that tests may run the workflow in, edit and break."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import settings

from sigprop.experiments.frames import schema
from sigprop.experiments.propagation.settings import PropagationSettings

SCHEMA = schema(PropagationSettings)

try:
    from xdist.scheduler import LoadScopeScheduling
except ImportError:  # no pytest-xdist: everything runs in one process anyway
    LoadScopeScheduling = None

# The same examples everywhere, however slow the machine: a failure is one of the code.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")

CHECKOUT = Path(__file__).resolve().parents[1]
_SNAKEMAKE = Path(sys.executable).with_name("snakemake")
_JOB_TABLE = re.compile(r"^([a-z]\w*) +(\d+)$", re.MULTILINE)


if LoadScopeScheduling is not None:

    class _OneWorkflow(LoadScopeScheduling):
        """Tests one by one to whoever is free, but all that run the workflow to one worker.

        They share one built tree, which costs minutes. The marks of pytest-xdist for such groups do
        nothing under the pytest of the lock.
        """

        def _split_scope(self, nodeid: str) -> str:
            return "workflow" if nodeid.startswith(("tests/workflow/", "tests/e2e/")) else nodeid

    def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
        return _OneWorkflow(config, log)


@dataclass(frozen=True)
class Tree:
    """A copy of the checkout, at `root`."""

    root: Path

    def command(self, *arguments: str) -> list[str]:
        """Snakemake at the smoke preset, unless the arguments bring their own --config."""
        preset = [] if "--config" in arguments else ["--config", "preset=smoke"]
        return [str(_SNAKEMAKE), *arguments, "--cores", "2", *preset]

    def snakemake(self, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        return self.call(self.command(*arguments), **options)

    def call(self, command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            cwd=self.root,
            capture_output=True,
            text=True,
            **options,
        )

    def sigprop(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """`python -m sigprop` with this tree's code."""
        code = {"PYTHONPATH": str(self.root / "workflow")}
        return self.call([sys.executable, "-m", "sigprop", *arguments], env=os.environ | code)

    def jobs(self, *arguments: str) -> set[str]:
        """Rules that a dry run would run; empty when there is nothing to be done."""
        done = self.snakemake("-n", *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        counts = dict(_JOB_TABLE.findall(done.stdout + done.stderr))
        assert counts or "Nothing to be done" in done.stdout + done.stderr
        return set(counts) - {"total", "all"}

    def edit(self, file: str, old: str, new: str) -> None:
        """Replace the first `old`, which must be there."""
        path = self.root / file
        text = path.read_text(encoding="utf-8")
        assert old in text, f"{file} no longer holds {old!r}"
        path.write_text(text.replace(old, new, 1), encoding="utf-8")

    def copy(self, to: Path) -> "Tree":
        """The same tree elsewhere, with what was built in it."""
        shutil.copytree(self.root, to, symlinks=True, dirs_exist_ok=True)
        return Tree(to)


def _copy_checkout(to: Path) -> Tree:
    """What git would carry, so that a file which only this machine has is missed."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode:  # an archive, not a git checkout
        shutil.copytree(CHECKOUT, to, ignore=shutil.ignore_patterns(".*"), dirs_exist_ok=True)
        shutil.rmtree(to / "results", ignore_errors=True)
    for name in filter(None, listed.stdout.split("\0")):
        if (CHECKOUT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(CHECKOUT / name, to / name)
    return Tree(to)


def _rows(
    quantity: str, values: Any, layers: list[int], *, source: str = "simulation", **factors: Any
) -> pd.DataFrame:
    """Rows of a forward-propagation table; values (networks, layers), one row of them is theory."""
    values = np.atleast_2d(np.asarray(values, dtype=np.float64))
    rule = r"1/\sqrt{L}" if str(factors.get("scheme")).endswith("_scaled") else "1"
    some = {"scheme": "no_ln", "alpha_rule": rule, "activation": "relu", "attention": "softmax"}
    some |= {"n_tokens": 16, "d_model": 32, "n_heads": 1, "d_ff": 32, "depth": layers[-1]}
    some |= {"alpha_attn": 1.0, "alpha_ff": 1.0, "tau": 1.0, "sigma_x": 1.0, "rho": 0.1}
    simulated = source == "simulation"
    frame = pd.DataFrame({"value": values.reshape(-1), "layer": [*layers] * len(values)})
    frame = frame.assign(**some | {"sampler": "law" if simulated else ""} | factors)
    frame = frame.assign(quantity=quantity, source=source)
    seed = np.repeat(np.arange(len(values)), len(layers)) if simulated else [pd.NA] * len(frame)
    frame["seed"] = pd.array(seed, dtype="Int64")
    return SCHEMA.validate(frame[[*SCHEMA.columns]])


@pytest.fixture
def rows() -> Callable[..., pd.DataFrame]:
    """Makes tables of made-up numbers, see `_rows`."""
    return _rows


@pytest.fixture
def checkout() -> Path:
    return CHECKOUT


@pytest.fixture(scope="session")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    """A fresh copy in which nothing was built, for dry runs only."""
    return _copy_checkout(tmp_path_factory.mktemp("clean"))


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    """A fresh git clone of sorts after one full run of the smoke preset. Not to be changed."""
    tree = _copy_checkout(tmp_path_factory.mktemp("built"))
    identity = ["-c", "user.name=test", "-c", "user.email=test@localhost"]
    for command in (["init", "-q"], ["add", "-A"], [*identity, "commit", "-qm", "as tested"]):
        tree.call(["git", *command], check=True)
    done = tree.snakemake()
    assert done.returncode == 0, done.stdout + done.stderr
    return tree


@pytest.fixture
def tree(built: Tree, tmp_path: Path) -> Tree:
    """A copy of the built tree, to change at will."""
    return built.copy(tmp_path / "tree")
