"""`sigprop exponents`: what theory says about one setting, before anything is trained.

Cowsik et al. 2024, arXiv 2403.02579, as re-derived in `theory.cowsik2024`. Imports no torch.
"""

import argparse
import json
import math
from dataclasses import asdict
from typing import Any

from sigprop.artifacts.errors import UserError

_ABOUT = """
Phase and exponents at initialization of a transformer with one head and LN on every branch input,

    Y = s X + alpha_attn Attention(X),   X' = s Y + alpha_ff MLP(Y),

at infinite width. lambda_a: the angle between tokens grows (chaotic) or shrinks (ordered) as
e^(lambda_a l) near collapse. lambda_g: the back-propagated gradient grows as e^(lambda_g l) towards
the input. Trainable where depth times both is of order one.
"""


def add_command(commands: Any) -> None:
    """Add `exponents` to the command line."""
    parser = commands.add_parser(
        "exponents",
        help="phase and exponents of a setting (Cowsik et al. 2024)",
        description=_ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    number = {"type": float, "metavar": "X"}
    parser.add_argument("--alpha-attn", required=True, help="attention strength, 0 to 1", **number)
    parser.add_argument("--alpha-ff", required=True, help="MLP strength, 0 to 1", **number)
    parser.add_argument("--sigma-w", help="both MLP matrices: entries sigma_w/sqrt(d)", **number)
    parser.add_argument("--sigma-w1", help="the first alone", **number)
    parser.add_argument("--sigma-w2", help="the second alone", **number)
    parser.add_argument("--sigma-a", default=1.0, help="logit scale (default 1)", **number)
    parser.add_argument("--sigma-v", default=1.0, help="value matrix (default 1)", **number)
    parser.add_argument(
        "--n-tokens", type=float, default=32, metavar="N", help="2 or more, or inf (default 32)"
    )
    parser.add_argument("--depth", type=int, metavar="L", help="adds what belongs to a depth")
    parser.add_argument(
        "--activation", default="tanh", help="tanh (default), relu, linear, erf or gelu"
    )
    parser.add_argument(
        "--mode",
        default="conv",
        help="conv (default): s = sqrt(1 - alpha^2); renorm: s = 1, LN after every block; "
        "unit: s = 1",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(command=_command)


def _command(arguments: argparse.Namespace) -> None:
    import sys

    sys.stdout.write(
        report(arguments.depth, as_json=arguments.json, **_architecture(arguments)) + "\n"
    )


def _architecture(arguments: argparse.Namespace) -> dict[str, Any]:
    sigmas = {}
    for name in ("sigma_w1", "sigma_w2"):
        value = getattr(arguments, name)
        sigmas[name] = arguments.sigma_w if value is None else value
        if sigmas[name] is None:
            option = name.replace("_", "-")
            raise UserError(f"--{option}: missing; give --sigma-w, or --sigma-w1 and --sigma-w2")
    n = arguments.n_tokens
    if math.isfinite(n) and n != int(n):
        raise UserError(f"--n-tokens: {n:g} is not allowed; use a whole number, or inf")
    return sigmas | {
        "alpha_attn": arguments.alpha_attn,
        "alpha_ff": arguments.alpha_ff,
        "sigma_a": arguments.sigma_a,
        "sigma_v": arguments.sigma_v,
        "n_tokens": n,
        "activation": arguments.activation,
        "mode": arguments.mode,
    }


def report(depth: int | None = None, *, as_json: bool = False, **settings: Any) -> str:
    """The calculator's answer as text.

    Args:
        depth: L, for what belongs to a whole stack; None leaves it out.
        as_json: JSON with null for what does not apply and "inf" for what is infinite.
        settings: those of `theory.cowsik2024.Architecture`.

    The numbers themselves come from `theory.cowsik2024_phases.exponents`, a function of one
    `Architecture` that returns an `ExponentReport`.

    Raises UserError, one line, for a setting outside its domain.
    """
    from sigprop.theory.cowsik2024 import Architecture
    from sigprop.theory.cowsik2024_phases import exponents, trainable_depth

    try:
        architecture = Architecture(**settings)
        found = exponents(architecture, depth)
        reach = math.inf if found.power_a is not None else float(trainable_depth(architecture))
    except ValueError as error:
        raise UserError(str(error)) from error
    record = asdict(found) | {"trainable_depth": None if found.power_a is not None else reach}
    if as_json:
        plain = {
            key: str(value) if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in record.items()
        }
        return json.dumps(plain, indent=2)
    return "\n".join(f"{name:<31}{value}" for name, value in _lines(record, depth))


def _lines(record: dict[str, Any], depth: int | None) -> list[tuple[str, str]]:
    meaning = {
        "ordered": "ordered: tokens become parallel",
        "chaotic": "chaotic: tokens settle at an angle",
        "edge": "the edge between order and chaos",
    }
    lines = [("phase", meaning[record["phase"]])]
    if record["power_a"] is not None:
        lines += [
            ("angle, power of the depth", f"{record['power_a']:+.4g}"),
            ("gradient, power of the depth", f"{record['power_g']:+.4g}"),
            ("exponents per block", "none: the stream grows, everything is a power of the depth"),
        ]
    else:
        lines += [
            ("lambda_a, angle", _rate(record["lambda_a"], record["depth_scale_a"])),
            ("lambda_g, gradient", _rate(record["lambda_g"], record["depth_scale_g"])),
            ("lambda_g*, stable point", f"{record['lambda_g_star']:+.4g}"),
        ]
    if depth is not None:
        lines.append((f"lambda_g, first {depth} blocks", f"{record['lambda_g_traj']:+.4g}"))
        if record["power_a"] is None:
            both = f"{depth * record['lambda_a']:+.3g}, {depth * record['lambda_g']:+.3g}"
            lines.append(("depth times lambda_a, _g", both))
    if record["trainable_depth"] is not None:
        lines.append(("depth with both below 1", f"{record['trainable_depth']:.3g} blocks"))
    lines += [
        ("token variance, correlation", f"{record['q_star']:.4g}, {record['rho_star']:.4g}"),
        ("critical sigma_w", _optional(record["critical_sigma_w"])),
    ]
    critical = record["critical_alpha"]
    alphas = "none" if critical is None else f"{critical[0]:.4g}, {critical[1]:.4g}"
    return [
        *lines,
        ("critical alpha_attn, _mlp", alphas),
        ("nearest critical setting", _nearest(record)),
    ]


def _nearest(record: dict[str, Any]) -> str:
    """Which change takes the setting to the edge of chaos."""
    which, factor = record["nearest_critical"], record["nearest_factor"]
    if which is None:
        return "none: no sigma_w and no scale of the strengths has lambda_a = 0"
    what = "sigma_w" if which == "sigma_w" else "both strengths"
    return f"{what} times {factor:.4g}"


def _rate(value: float, scale: float) -> str:
    if math.isinf(scale):
        return "0: neither grows nor decays with depth"
    return f"{value:+.4g} per block, a factor e in {scale:.3g} blocks"


def _optional(value: float | None) -> str:
    return "none" if value is None else f"{value:.4g}"
