"""`sigprop exponents`: numbers against closed forms worked out here, and its one-line refusals."""

import json
import math
import subprocess
import sys

import numpy as np
import pytest
from scipy import integrate

from sigprop.artifacts.errors import UserError
from sigprop.cli import main as cli
from sigprop.cli.exponents import report

SETTING = ["--alpha-attn", "0.5", "--alpha-ff", "0.5", "--sigma-w", "2.5"]


def answer(*arguments: str, capsys: pytest.CaptureFixture[str]) -> str:
    cli.main(["exponents", *arguments])
    return capsys.readouterr().out


def by_quadrature(alpha: float, sigma: float) -> tuple[float, float]:
    """lambda_a and lambda_g in mode conv, tanh, alpha_attn = alpha_ff, from their definitions."""

    def gauss(f: object) -> float:
        weight = math.sqrt(2 * math.pi)
        return integrate.quad(lambda z: f(z) * math.exp(-z * z / 2) / weight, -9, 9)[0]

    power = sigma**2 * gauss(lambda z: math.tanh(sigma * z) ** 2)  # B
    slope = sigma**4 * gauss(lambda z: (1 - math.tanh(sigma * z) ** 2) ** 2)  # G
    c, a2 = 1 - alpha**2, alpha**2
    q = (c * a2 + a2 * power) / (1 - c * c)
    after_attention = c * q + a2
    difference = c * (c + a2 * slope / after_attention)
    coherent = (c + a2 / q) * (c + a2 * slope / after_attention)
    return math.log(difference), math.log(coherent)


@pytest.mark.parametrize(("alpha", "sigma"), [(0.5, 2.5), (0.3, 1.5), (0.7, 1.2)])
def test_exponents_are_those_of_the_definition(
    alpha: float, sigma: float, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--alpha-attn", str(alpha), "--alpha-ff", str(alpha), "--sigma-w", str(sigma)]
    found = json.loads(answer(*options, "--json", capsys=capsys))
    angle, gradient = by_quadrature(alpha, sigma)
    assert found["lambda_a"] == pytest.approx(angle, abs=1e-8)
    assert found["lambda_g"] == pytest.approx(gradient, abs=1e-8)
    assert found["phase"] == ("chaotic" if angle > 0 else "ordered")
    assert found["depth_scale_a"] == pytest.approx(1 / abs(angle), rel=1e-6)
    assert by_quadrature(alpha, found["critical_sigma_w"])[0] == pytest.approx(0, abs=1e-8)


def test_the_text_says_phase_depth_scale_and_nearest_critical_setting(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = answer(*SETTING, "--depth", "24", capsys=capsys)
    rows = {line[:31].strip(): line[31:] for line in text.splitlines()}
    assert rows["phase"].startswith("chaotic")
    assert rows["lambda_a, angle"].startswith("+0.169 per block, a factor e in 5.92")
    assert rows["critical sigma_w"] == "1.926"
    assert rows["nearest critical setting"].startswith("sigma_w times 0.770")  # 1.9259 / 2.5
    assert "lambda_g, first 24 blocks" in rows and "depth times lambda_a, _g" in rows


def test_unit_skips_have_powers_instead_of_rates(capsys: pytest.CaptureFixture[str]) -> None:
    text = answer(*SETTING, "--mode", "unit", capsys=capsys)
    assert "power of the depth" in text and "lambda_a, angle" not in text


def test_without_branches_nothing_changes_with_depth(capsys: pytest.CaptureFixture[str]) -> None:
    text = answer("--alpha-attn", "0", "--alpha-ff", "0", "--sigma-w", "1", capsys=capsys)
    assert "neither grows nor decays" in text


def test_the_nearest_critical_setting_is_critical(capsys: pytest.CaptureFixture[str]) -> None:
    """Where the strengths are nearer to their edge than sigma_w, and where there is no edge."""
    setting = ["--alpha-attn", "0.8", "--alpha-ff", "0.8", "--sigma-w", "4"]
    found = json.loads(answer(*setting, "--json", capsys=capsys))
    assert found["nearest_critical"] == "alpha"
    edge = by_quadrature(0.8 * found["nearest_factor"], 4.0)[0]
    assert edge == pytest.approx(0, abs=1e-8)
    assert 1 < found["nearest_factor"] < 4 / found["critical_sigma_w"]
    text = answer(*setting, "--activation", "relu", capsys=capsys)
    assert text.splitlines()[-1].split(None, 3)[3].startswith("none: no sigma_w and no scale")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (["--sigma-w", "60"], "sigma_w1 = 60 is too large for the quadrature of tanh: pass"),
        (["--sigma-w", "1e-300"], "sigma = 1e-300 is too small for float64: pass sigma >="),
        (["--sigma-a", "30"], "sigma_a = 30 is too large for the quadrature: pass sigma_a <="),
        (["--alpha-attn", "1.5"], "alpha_attn = 1.5 is out of range: pass 0 <= alpha_attn <= 1"),
        (["--alpha-ff", "nan"], "alpha_ff"),
        (["--sigma-w", "0"], "sigma_w1"),
        (["--n-tokens", "1"], "n_tokens = 1"),
        (["--n-tokens", "2.5"], "--n-tokens: 2.5 is not allowed; use a whole number, or inf"),
        (["--mode", "con"], "mode"),
        (["--activation", "swish"], "activation"),
        (["--depth", "0"], "depth"),
    ],
)
def test_bad_settings_are_one_line(changes: list[str], says: str) -> None:
    with pytest.raises(SystemExit) as leaving:
        cli.main(["exponents", *SETTING, *changes])
    line = leaving.value.code
    assert isinstance(line, str) and "\n" not in line and says in line


def test_a_missing_sigma_is_named() -> None:
    with pytest.raises(SystemExit, match="--sigma-w1: missing; give --sigma-w"):
        cli.main(["exponents", "--alpha-attn", "0.5", "--alpha-ff", "0.5"])


def test_as_a_function() -> None:
    settings = {"alpha_attn": 0.5, "alpha_ff": 0.5, "sigma_w1": 2.5, "sigma_w2": 1.0}
    assert json.loads(report(as_json=True, **settings))["lambda_a"] == pytest.approx(-0.172394)
    with pytest.raises(UserError, match="sigma_w2"):
        report(**settings | {"sigma_w2": -1.0})
    assert np.isfinite(json.loads(report(8, as_json=True, **settings))["lambda_g_traj"])


def test_no_torch_is_imported() -> None:
    program = (
        "import sys; from sigprop.cli import main as cli; cli.main(['exponents', *sys.argv[1:]]); "
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program, *SETTING], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
