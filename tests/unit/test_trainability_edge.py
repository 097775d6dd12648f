"""The design near the edge of chaos: chosen by exponents alone, in the order of its sequence."""

from typing import Any

import numpy as np
import pytest
from scipy.stats import qmc

from sigprop.artifacts.errors import UserError
from sigprop.experiments.config import load
from sigprop.experiments.context import Context, chosen
from sigprop.experiments.frames import schema
from sigprop.experiments.settings import parse
from sigprop.experiments.trainability import simulation, theory
from sigprop.experiments.trainability.design import near_the_edge
from sigprop.experiments.trainability.settings import Configuration, TrainabilitySettings
from sigprop.theory.cowsik2024 import tied
from sigprop.theory.cowsik2024_phases import lambda_a, lambda_g

EDGE: dict[str, Any] = {
    "n_points": 3,
    "design_seed": 1,
    "alpha_attn": [0.05, 0.9],
    "alpha_ff": [0.05, 0.9],
    "sigma_w": [0.6, 4.0],
}
BASE: dict[str, Any] = {
    "edge": EDGE,
    "depth": 16,
    "n_tokens": 5,
    "n_symbols": 3,
    "d_model": 8,
    "n_seeds": 1,
    "ensemble": 4,
    "training": {"steps": 2, "batch_size": 2, "lr": 0.003},
    "test_sequences": 4,
}


def settings(**changes: Any) -> TrainabilitySettings:
    return parse(TrainabilitySettings, BASE | changes)


def points_of(of: TrainabilitySettings, depth: int) -> list[Configuration]:
    assert of.edge is not None
    return near_the_edge(of.edge, depth)


def test_the_first_of_the_sequence_on_either_side() -> None:
    """Every candidate up to the last one kept, one at a time."""
    points = points_of(settings(), 16)
    assert [point.config for point in points] == list(range(6))
    unit = qmc.Sobol(3, rng=1).random(512)
    candidates = qmc.scale(unit, *zip([0.05, 0.9], [0.05, 0.9], [0.6, 4.0], strict=True))
    groups: dict[bool, list[tuple[float, ...]]] = {True: [], False: []}
    for candidate in candidates:
        if min(map(len, groups.values())) == 3:
            break
        model = tied(*candidate)
        if 16 * abs(float(lambda_a(model))) < 3:
            groups[16 * float(lambda_g(model)) >= 7].append(tuple(candidate))
    found = [(point.alpha_attn, point.alpha_ff, point.sigma_w) for point in points]
    np.testing.assert_allclose(found, groups[True][:3] + groups[False][:3])


def test_a_choice_of_another_depth_is_another() -> None:
    """L lambda decides, so deeper networks have weaker branches."""
    shallow, deep = points_of(settings(), 16), points_of(settings(), 64)
    assert max(p.alpha_attn for p in deep[:3]) < max(p.alpha_attn for p in shallow[:3])


def test_it_trains_what_was_chosen_and_theory_agrees_with_the_choice() -> None:
    near = settings(depth=4, edge=EDGE | {"near": 1.0, "split": 2.0})
    context = Context("t", 1, design=chosen(near))
    table = schema(TrainabilitySettings).validate(simulation.run(near, context))
    assert set(table["design"]) == {"edge"} and table["config"].nunique() == 6
    exponents = theory.run(near, context)
    wide = 4 * exponents.pivot(index="config", columns="quantity", values="value")
    assert (wide["lambda_a"].abs() < 1).all()
    assert list(wide["lambda_g"] >= 2) == [True] * 3 + [False] * 3


def test_the_laptop_preset_has_the_ranges_and_the_training_of_the_hypercube() -> None:
    """The claim compares points of one kind: only how they are chosen differs."""
    both = load("laptop").experiments
    edge, lhs = both["train_edge"].model_dump(), both["train_lhs"].model_dump()
    for name in ("depth", "mode", "n_tokens", "d_model", "training", "test_sequences", "readout"):
        assert edge[name] == lhs[name], name
    for name in ("alpha_attn", "alpha_ff", "sigma_w", "sigma_v", "sigma_a"):
        assert edge["edge"][name] == lhs["lhs"][name], name


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mode": "renorm"}, "mode=renorm; the edge is that of conv"),
        ({"grid": {"alpha": 0.5, "sigma_w": 1.0}}, "give one design"),
        ({"edge": EDGE | {"near": 0}}, "edge.near.*0 is not allowed"),
    ],
)
def test_refuses(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        settings(**changes)
    assert "\n" not in str(caught.value)


def test_ranges_without_enough_at_the_edge_are_one_line() -> None:
    weak = EDGE | {"alpha_attn": [0.05, 0.06], "alpha_ff": [0.05, 0.06]}
    with pytest.raises(UserError, match=r"the ranges have 0 of n_points=3 .*at depth 16") as caught:
        points_of(settings(edge=weak), 16)
    assert "\n" not in str(caught.value)
