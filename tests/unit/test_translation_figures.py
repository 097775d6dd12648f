"""Tables and curves of the translation figures: what stands in them, and what is left out."""

import json
import re
from pathlib import Path
from typing import Any

import made_up_translation as made_up
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import tiny_translation as tiny

from sigprop.analysis import files, translation
from sigprop.analysis.stats import student_mean
from sigprop.analysis.training import by_step, seed_curve
from sigprop.experiments.config import load
from sigprop.experiments.settings import PRESETS
from sigprop.figures import translation_panels

PAPER: dict[str, Any] = {
    "data": {"source": "iwslt14", "bpe_size": 10000},
    "d_model": 512,
    "d_ff": 1024,
    "n_heads": 4,
    "depth": [6, 12],
    "dropout": 0.3,
    "n_seeds": 5,
    "beam": 5,
}
TRAINING: dict[str, Any] = {
    "steps": 100000,
    "batch_size": 4096,
    "weight_decay": 1e-4,
    "label_smoothing": 0.1,
}
ADAM = {
    "optimizer": "adam",
    "lr": 5e-4,
    "beta2": 0.98,
    "schedule": "inverse_sqrt",
    "warmup_steps": 4000,
    "tau": None,
    "tau_warmup_steps": 0,
}
SGD = {"optimizer": "sgd", "lr": 0.1, "schedule": "steps", "tau": 8.5, "tau_warmup_steps": 1000}


def paper_settings() -> dict[str, dict[str, Any]]:
    """Dumped settings of two methods at the paper's size."""
    return {
        name: tiny.settings(
            Path("nowhere"), **PAPER, scheme=scheme, training=TRAINING | own
        ).model_dump(mode="json")
        for name, scheme, own in (
            ("translation_post_ln_adam", "post_ln_xavier", ADAM),
            ("translation_ours", "residual_scaling", SGD),
        )
    }


def marks(table: pd.DataFrame) -> dict[str, str]:
    return dict(zip(table["hyperparameter"], table["mark"], strict=True))


def test_marks_at_the_papers_size() -> None:
    table = translation.hyperparameters(paper_settings())
    found = marks(table)
    assert found["width d"] == "inferred"
    assert found["inverse temperature"] == "stated"
    assert found["runs"] == "stated"
    assert found["learning rate, Adam"] == "inferred"
    assert found["learning rate, SGD"] == "our choice"
    assert found["text"] == "stated"
    assert not [mark for mark in found.values() if mark.startswith("our choice (")]
    row = table[table["hyperparameter"] == "learning rate, SGD"].iloc[0]
    assert list(row)[1:3] == ["", "0.1"]
    strength = table[table["hyperparameter"] == "residual strength"].iloc[0]
    assert list(strength)[1:3] == ["1", "1/sqrt(L), trained"]


def test_a_value_that_is_not_the_papers_is_ours_and_names_the_papers() -> None:
    settings = paper_settings()
    for own in settings.values():
        own["d_model"] = 128
    settings["translation_ours"]["training"]["tau"] = 4.0
    found = marks(translation.hyperparameters(settings))
    assert found["width d"] == "our choice (paper: 512, inferred)"
    assert found["inverse temperature"] == "our choice (paper: 8.5, stated)"


def test_every_setting_that_decides_a_result_is_a_row() -> None:
    """But for where the text lies, what is only looked at, and the text's own preparation."""
    settings = next(iter(paper_settings().values()))
    keys = {row.key for row in translation.ROWS}
    missing = [key for key in settings if key not in keys and key not in ("data", "training")]
    assert set(missing) == {
        "experiment",
        "cache",
        "residual",  # in the row of the strength
        "records",  # in those of the scheme and the strength
        "probe_steps",
        "probe_sentences",
        "score",
    }
    training = {f"training.{key}" for key in settings["training"]}
    assert training - keys == {"training.log_every"}
    data = {f"data.{key}" for key in settings["data"]}
    places = {f"data.{key}" for key in ("path", "valid_path", "test_path", "sha256", "languages")}
    assert data - keys == places


def test_every_row_has_one_of_the_marks_at_every_preset() -> None:
    for preset in PRESETS:
        experiments = load(preset).experiments
        settings = {name: experiments[name].model_dump(mode="json") for name in translation.METHODS}
        table = translation.hyperparameters(settings)
        assert len(table) == len(translation.ROWS)
        for mark in table["mark"]:
            assert re.fullmatch(
                r"stated|inferred|our choice( \(paper: .+, (stated|inferred)\))?", mark
            )
        others = set(table.loc[table["mark"].str.contains("paper:"), "hyperparameter"])
        # At the paper preset ReZero and T-Fixup alone differ: they need no warm-up.
        warmup = {"schedule, Adam", "warm-up of the rate, Adam"}
        assert others == warmup if preset == "paper" else others > warmup


def test_strengths_are_those_of_the_models() -> None:
    settings = paper_settings()
    settings["translation_ours"]["residual"] = [
        {"coefficient": 1.0, "depth_power": 0.0},
        {"coefficient": 0.5, "depth_power": 0.25},
        {"coefficient": 2.0, "depth_power": 1.0},
    ]
    table = translation.hyperparameters(settings).set_index("hyperparameter")
    ours = table.loc["residual strength"].iloc[-2]
    assert ours == "1 and 0.5 L^-0.25 and 2/L, trained"


def test_written_tables_hold_every_cell(tmp_path: Path) -> None:
    table = pd.DataFrame({"a_b": ["x & y", "50 %"], "c": [r"p|q", "{z}\\"], "n": [1.50, 1e-9]})
    files.write(table, tmp_path / "t")
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "t.csv"), table)
    markdown = (tmp_path / "t.md").read_text().splitlines()
    assert re.sub(" +", " ", markdown[0]) == "| a_b | c | n |"
    assert re.sub(" +", " ", markdown[2]) == r"| x & y | p\|q | 1.5 |" and "1e-09" in markdown[3]
    tex = (tmp_path / "t.tex").read_text()
    assert r"a\_b & c & n \\" in tex and r"x \& y & p|q & 1.5 \\" in tex
    assert r"50 \% & \{z\}\textbackslash  & 1e-09 \\" in tex


def test_bleu_table_has_means_intervals_and_an_empty_paper_column() -> None:
    methods = {
        name: table.assign(quantity=table["quantity"]) for name, table in made_up.trained().items()
    }
    doubled = {
        name: pd.concat(
            [
                table,
                table[table["quantity"] == "bleu_tokenized"].assign(quantity="sacrebleu"),
            ]
        )
        for name, table in methods.items()
    }
    table = translation.bleu_table(doubled, {name: name for name in doubled})
    assert list(table["paper"]) == ["", "", ""]
    assert list(table["runs"]) == [3, 3, 3]
    ours = table[table["method"] == "translation_ours"].iloc[0]
    values = translation.scores(methods["translation_ours"], "bleu_tokenized")
    mean, low, high = student_mean(values)
    assert ours["sacrebleu"] == ours["bleu_tokenized"] == f"{mean:.2f} [{low:.2f}, {high:.2f}]"
    assert low < mean < high


@pytest.mark.parametrize("kept", [0, 1])
def test_too_few_scores_for_an_interval_are_no_nan(kept: int) -> None:
    """One run has a score without an interval; runs that diverged at once have none."""
    table = made_up.trained()["translation_ours"]
    scored = table["quantity"].isin(["bleu_tokenized", "sacrebleu"])
    few = table[~scored | ((table["quantity"] == "bleu_tokenized") & (table["seed"] < kept))]
    (row,) = translation.bleu_table(
        {"translation_ours": few}, {"translation_ours": "ours"}
    ).to_dict("records")
    values = translation.scores(few, "bleu_tokenized")
    assert row["bleu_tokenized"] == (f"{values[0]:.2f}" if kept else "none")
    assert row["sacrebleu"] == "none"
    figure, ax = plt.subplots()
    translation_panels.draw_scores(ax, {"translation_ours": few}, "bleu_tokenized")
    figure.canvas.draw()
    plt.close(figure)


def test_a_run_that_diverged_leaves_the_mean_of_the_others() -> None:
    rows = made_up.trained()["translation_ours"]
    gone = (rows["quantity"] == "valid_loss") & (rows["seed"] == 0) & (rows["step"] > 0)
    steps, values = by_step(rows[~gone], "valid_loss")
    curve = seed_curve(steps, values)
    np.testing.assert_allclose(curve.mean[1:], values[1:, 1:].mean(0))
    assert np.isfinite(curve.mean).all() and (curve.low <= curve.high).all()


def test_methods_that_were_left_out_are_not_drawn(tmp_path: Path) -> None:
    paths = {}
    for name, table in made_up.trained().items():
        paths[name] = str(tmp_path / f"{name}.parquet")
        (table.iloc[:0] if name == "translation_ours" else table).to_parquet(paths[name])
        sidecar = {"settings": {"data": {"lowercase": True}}}
        (tmp_path / f"{name}.json").write_text(json.dumps(sidecar))
    found = translation.methods(paths)
    assert list(found) == ["translation_post_ln_adam", "translation_post_ln_sgd"]
    figure, ax = plt.subplots()
    translation_panels.draw_scores(ax, found, "bleu_tokenized")
    assert len(ax.lines) == 4  # dots and a bar for each
    plt.close(figure)
    plain, tokens = translation.signatures(paths)
    assert "case:lc" in plain and "tok:13a" in plain and "tok:none" in tokens
    with pytest.raises(ValueError, match="no method was trained"):
        translation.methods({"translation_ours": paths["translation_ours"]})
