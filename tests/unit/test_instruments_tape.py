"""Blocks forward and backward one at a time: the chain rule, and what stops it."""

import pytest
import torch

from sigprop.instruments.tape import Tape
from sigprop.models.encoder import EncoderConfig
from sigprop.models.schemes import SCHEMES, Scheme

CONFIG = EncoderConfig(n_tokens=3, d_model=6, depth=4, activation="tanh")


def tape(weights: list[torch.Tensor], scheme: Scheme = SCHEMES["pre_ln"]) -> Tape:
    """Weights in the order in which blocks ask for them."""
    left = iter(weights)
    return Tape(CONFIG, scheme, lambda x, widths: tuple(x @ next(left) for _ in widths))


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_block_by_block_is_the_derivative_of_the_whole() -> None:
    """Against central differences of the whole stack, in a random direction."""
    weights = list(normal(20, 6, 6) / 2)  # q, k, v, ff1, ff2 of four blocks
    x, readout, direction = (normal(2, 3, 6, seed=seed) for seed in (1, 2, 3))

    def loss(x: torch.Tensor) -> torch.Tensor:
        made = tape(weights)
        for _ in range(CONFIG.depth):
            x = made.forward(x)
            assert not x.requires_grad
        return (readout * x).sum((-2, -1))

    made, state, delta = tape(weights), x, readout
    for _ in range(CONFIG.depth):
        state = made.forward(state)
    for _ in range(CONFIG.depth):
        delta = made.backward(delta)
    h = 1e-6
    expected = (loss(x + h * direction) - loss(x - h * direction)) / (2 * h)
    torch.testing.assert_close((delta * direction).sum((-2, -1)), expected, rtol=1e-7, atol=1e-8)


def test_overflow_names_what_and_where() -> None:
    made = tape([1e200 * torch.eye(6, dtype=torch.float64)] * 10, SCHEMES["no_ln"])
    x = made.forward(normal(1, 3, 6) * 1e-300)
    with pytest.raises(FloatingPointError, match=r"activations of scheme 'no_ln' .* layer 2 of 4"):
        made.forward(x * 1e300)
