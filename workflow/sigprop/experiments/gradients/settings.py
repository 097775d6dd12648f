"""Settings of the end-to-end gradient experiments. Imports no torch."""

from typing import Literal, Self

from pydantic import Field, model_validator

from sigprop.experiments.propagation.settings import EncoderSettings, PropagationSettings
from sigprop.experiments.settings import Factor


class GradientSettings(EncoderSettings):
    """A sweep of forward and backward passes through random encoders."""

    # `layer` counts from 0: weights of layer l read X^l; X^0 is the input. The loss has no unit.
    QUANTITIES = {
        **{f"grad_{family}": "1" for family in ("q", "k", "v", "ff1", "ff2", "o")},
        "grad_x": "coordinate^-2",
        "cos_mean": "1",
        "jacobian_q": "coordinate^6",
        "jacobian_k": "coordinate^6",
        "jacobian_v": "coordinate^2",
        "jacobian_q_given_x": "coordinate^6",
        "jacobian_v_given_x": "coordinate^2",
        "sum_sq_norm": "coordinate^2",
        "gram_sq_norm": "coordinate^4",
        "spread_sq_norm": "coordinate^2",
        "mean_sq_norm": "coordinate^2",
    }
    FACTORS = PropagationSettings.FACTORS
    THEORY_READS_SIMULATION = True

    experiment: Literal["gradients"] = Field(default="gradients", description="kind of experiment")

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

    @model_validator(mode="after")
    def _covered(self) -> Self:
        schemes = self.schemes
        for name in self.scheme if "softmax" in self.attention else ():
            if (variant := schemes[name].attention) != "dot_product":
                raise ValueError(
                    f"scheme={name} has attention {variant!r}, but Lemma 3.1 and the attention "
                    "Jacobians cover dot_product alone; choose another scheme"
                )
        return self
