"""Theory alongside the forward-propagation simulations: exact sums, and the infinite-width map."""

from functools import partial

import numpy as np
import pandas as pd

from sigprop.artifacts.errors import UserError
from sigprop.experiments.context import Context
from sigprop.experiments.frames import tidy
from sigprop.experiments.propagation.settings import EncoderCase, PropagationSettings
from sigprop.theory import noci2022 as theory
from sigprop.theory import noci2022_maps as maps

# Layers between which the exponent of PRE-LN's polynomial collapse is read off the map.
_EXPONENT_LAYERS = (2000, 20000)


def run(settings: PropagationSettings, context: Context) -> pd.DataFrame:
    """The theory of every case at the layers that the simulation keeps.

    - `sum_sq_norm`, `sum_inner`, `rho_ratio`: Lemmas 3.2, 3.3 and Theorem 3.2, exact at any width,
      where they hold (no LN, linear feed-forward, uniform attention);
    - `cos_mean` and, elsewhere, `sum_sq_norm`: the infinite-width map under uniform attention,
      also alongside softmax simulations, which is how the assumption is tested;
    - `rho_ratio_limit`, `cos_mean_limit`: depth to infinity at alpha^2 = at / L;
    - `collapse_exponent`: slope of ln(1 - rho) against ln l of the unscaled PRE-LN map between
      layers 2000 and 20000, at layer 20000.

    A theory value depends on no sampler: its `sampler` is empty. Cases whose attention the map does
    not cover have no theory, and no rows.

    Raises UserError for a scheme with another skip than "unit", or with LN at block outputs.
    """
    frames = []
    seen: set[tuple[object, ...]] = set()
    for case in settings.cases():
        factors = case.factors() | {"sampler": ""}
        if case.attention == "softmax" and case.scheme.attention not in maps.COVERS:
            continue
        if (key := tuple(factors.values())) in seen:
            continue
        seen.add(key)
        for quantity, (layer, value) in _values(case, settings.layers(case.depth)).items():
            columns = factors | {"layer": np.asarray(layer, dtype=np.int64)}
            frames.append(tidy(PropagationSettings, columns, quantity=quantity, value=value))
    if not frames:  # a table without rows
        factors |= {"layer": 0}
        return tidy(PropagationSettings, factors, quantity="cos_mean", value=[0.0]).iloc[:0]
    return pd.concat(frames, ignore_index=True)


def _values(case: EncoderCase, layers: list[int]) -> dict[str, tuple[list[int], np.ndarray]]:
    scheme, n, depth = case.scheme, case.n_tokens, case.depth
    gain_attn, gain_ff = (
        float(gain)
        for gain in theory.branch_gains(
            scheme.init,
            case.d_model,
            case.d_ff,
            activation=case.activation,
            he=scheme.he and scheme.init == "fan_in",  # as in `Scheme.variance`
            output_projection=case.n_heads > 1,
        )
    )
    if scheme.skip != "unit" or scheme.renorm:
        raise UserError(
            f"scheme: the theory does not cover the skip or renorm of {scheme.name!r}; choose "
            "schemes with skip 'unit' and without renorm"
        )
    gain_attn *= scheme.gain("v", depth) * (scheme.gain("o", depth) if case.n_heads > 1 else 1.0)
    gain_ff *= scheme.gain("ff1", depth) * scheme.gain("ff2", depth)
    alpha_attn, alpha_ff = scheme.alpha_attn.at(depth), scheme.alpha_ff.at(depth)
    mean_field = partial(
        maps.mean_field_trajectory,
        n_tokens=n,
        rho_0=case.rho,
        norm=scheme.norm,
        activation=case.activation,
        alpha_attn=alpha_attn,
        alpha_ff=alpha_ff,
        gain_attn=gain_attn,
        gain_ff=gain_ff,
        q_0=case.sigma_x**2,
    )
    q_map = mean_field(depth)
    kept = np.asarray(layers)
    values = {
        "cos_mean": (layers, q_map.rho[kept]),
        "sum_sq_norm": (layers, n * case.d_model * q_map.q[kept]),
    }
    exact = scheme.norm == "none" and case.activation == "linear" and case.attention == "uniform"
    t_0, c_0 = theory.gaussian_token_sums(n, case.d_model, case.sigma_x, case.rho)
    if exact:
        sums = theory.expected_sums(kept, t_0, c_0, n, alpha_attn, alpha_ff, gain_attn, gain_ff)
        values["sum_sq_norm"], values["sum_inner"] = (layers, sums[0]), (layers, sums[1])
        values["rho_ratio"] = (
            layers,
            theory.rho_at_layer(kept, n, case.rho, alpha_attn, gain_attn),
        )
    # Limits of infinite depth are those of weights that do not depend on it.
    fixed = all(isinstance(gain, float) or not gain.depth_power for _, gain in scheme.gains)
    scaled = fixed and scheme.alpha_attn.depth_power == scheme.alpha_ff.depth_power == 0.5
    if scaled:
        at1, at2 = scheme.alpha_attn.at(1) ** 2, scheme.alpha_ff.at(1) ** 2
        limit = maps.mean_field_limit(
            n,
            case.rho,
            norm=scheme.norm,
            activation=case.activation,
            alpha_attn_sq_L=at1,
            alpha_ff_sq_L=at2,
            gain_attn=gain_attn,
            gain_ff=gain_ff,
            q_0=case.sigma_x**2,
        )
        values["cos_mean_limit"] = ([depth], limit.rho)
        if exact:
            rho = 1.0 - theory.one_minus_rho_limit(n, case.rho, at1, gain_attn)
            values["rho_ratio_limit"] = ([depth], np.atleast_1d(rho))
    unscaled = scheme.alpha_attn.depth_power == scheme.alpha_ff.depth_power == 0
    if scheme.norm == "pre" and unscaled and fixed:
        first, last = _EXPONENT_LAYERS
        ends = np.log(mean_field(last).one_minus_rho[[first, last]])
        slope = (ends[1] - ends[0]) / np.log(last / first)
        values["collapse_exponent"] = ([last], np.atleast_1d(slope))
    return values
