"""Settings of the end-to-end gradient experiments. Imports no torch."""

from typing import Literal

from pydantic import Field

from sigprop.experiments.propagation_settings import EncoderSettings
from sigprop.experiments.settings import Factor


class GradientSettings(EncoderSettings):
    """A sweep of forward and backward passes through random encoders."""

    quantities: Factor[
        Literal[
            "grad_q",
            "grad_k",
            "grad_v",
            "grad_ff1",
            "grad_ff2",
            "grad_x",
            "cos_mean",
            "jacobian_q",
            "jacobian_k",
            "jacobian_v",
        ]
    ] = Field(description="what is kept of each layer")
