"""Claims N29 to N31: each rule holds, fails and abstains where it should."""

from collections.abc import Callable

import made_up_translation as made_up
import numpy as np
import pytest
from scipy import stats

from sigprop.claims.claim import claims_of
from sigprop.claims.ledger import evaluate
from sigprop.claims.noci2022 import translation
from sigprop.claims.noci2022.translation import interval

BY_ID = {claim.id: claim for claim in claims_of(translation)}
Make = Callable[[None], made_up.Tables]


@pytest.mark.parametrize("name", made_up.HOLDS)
def test_holds(name: str) -> None:
    record = evaluate(BY_ID[name], made_up.HOLDS[name](None), "laptop")
    assert record.verdict == "reproduced", record


@pytest.mark.parametrize("name", made_up.FAILS)
def test_fails(name: str) -> None:
    record = evaluate(BY_ID[name.split()[0]], made_up.FAILS[name](None), "laptop")
    assert record.verdict == "not reproduced", record


def test_the_full_rule_holds_at_full_size_and_says_bleu() -> None:
    record = evaluate(BY_ID["N30"], made_up.trained(full=True), "paper")
    assert record.verdict == "reproduced"
    assert all("BLEU" in part.what for part in record.parts)


def test_a_smaller_run_is_labelled_and_never_compares_bleu() -> None:
    record = evaluate(BY_ID["N30"], made_up.trained(bleu=(0.0, 50.0, 0.0)), "laptop")
    assert record.verdict == "reproduced"
    assert all(part.what.startswith("scaled down, sign only") for part in record.parts)


@pytest.mark.parametrize(
    ("name", "tables"),
    [
        ("N29", made_up.initial(seeds=7)),
        ("N30", made_up.trained(seeds=2)),
        ("N30", made_up.trained(seeds=4, full=True)),
        ("N31", made_up.trained(seeds=2)),
        (
            "N30",
            made_up.trained()
            | {"translation_post_ln_sgd": made_up.trained()["translation_post_ln_sgd"].iloc[:0]},
        ),
    ],
)
def test_too_few_runs_decide_nothing(name: str, tables: made_up.Tables) -> None:
    assert evaluate(BY_ID[name], tables, "laptop").verdict == "not run"


@pytest.mark.parametrize("name", ["N29", "N30", "N31"])
def test_the_smoke_preset_decides_nothing(name: str) -> None:
    assert evaluate(BY_ID[name], made_up.HOLDS[name](None), "smoke").verdict == "not run"


def test_noise_is_inconclusive() -> None:
    tables = made_up.initial(unscaled={2: 0.5, 6: 0.52, 12: 0.54}, noise=0.05)
    assert evaluate(BY_ID["N29"], tables, "laptop").verdict == "inconclusive"


def test_interval_is_students() -> None:
    """Against scipy's own one-sample t interval."""
    values = np.array([0.3, 0.5, 0.1, 0.9])
    found = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    np.testing.assert_allclose(interval(values)[1:], (found.low, found.high), rtol=1e-12)
    with pytest.raises(ValueError, match="an interval needs at least 2"):
        interval(values[:1])
