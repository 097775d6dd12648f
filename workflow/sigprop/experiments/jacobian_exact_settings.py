"""Settings of the exactness checks of the Jacobian instrument. Imports no torch."""

from typing import Annotated

from pydantic import Field

from sigprop.experiments.settings import Block, Factor


class ExactSettings(Block):
    """How many random shapes and draws, and from which ranges."""

    n_shapes: int = Field(ge=1, le=10_000, description="random shapes compared with jacrev")
    n_draws: int = Field(ge=1, le=100_000, description="draws at exactly equal tokens")
    largest: int = Field(ge=5, le=64, description="largest of n_tokens, d_model, d_k, d_v")
    tau: Factor[Annotated[float, Field(gt=0, le=1e3)]] = Field(
        description="inverse temperatures to draw from"
    )
