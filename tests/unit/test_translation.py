"""The translation experiment: its table, resumption after a kill, divergence, what is measured."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import tiny_translation as tiny
import torch
from torch.nn import functional

from sigprop.artifacts.errors import UserError
from sigprop.experiments.context import Context
from sigprop.experiments.frames import schema
from sigprop.experiments.settings import parse
from sigprop.experiments.translation import init as translation_init
from sigprop.experiments.translation import simulation as translation
from sigprop.experiments.translation.model import (
    build,
    prepared,
    probe_batch,
    strengths,
    token_statistics,
)
from sigprop.experiments.translation.settings import (
    STRENGTHS,
    TranslationInitSettings,
    TranslationSettings,
)
from sigprop.models.seq2seq import Seq2Seq
from sigprop.tasks.translation.batches import Batches

TINY = Path(__file__).with_name("tiny_translation.py")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    place = tmp_path_factory.mktemp("translation")
    tiny.write_text(place)
    return place


@pytest.fixture(scope="module")
def table(folder: Path) -> pd.DataFrame:
    context = Context("tiny", 1, checkpoints=str(folder / "checkpoints"))
    return schema(TranslationSettings).validate(translation.run(tiny.settings(folder), context))


def values(table: pd.DataFrame, quantity: str, seed: int = 0) -> pd.DataFrame:
    return table[(table["quantity"] == quantity) & (table["seed"] == seed)]


# ---------------------------------------------------------------- the table


def test_every_run_has_every_row_once(table: pd.DataFrame) -> None:
    assert not table.duplicated(["depth", "seed", "quantity", "step", "layer"]).any()
    for seed in (0, 1):
        assert list(values(table, "valid_loss", seed)["step"]) == [0, 4, 8, 10]
        assert list(values(table, "train_loss", seed)["step"]) == [0, 5, 10]
        assert list(values(table, "diverged", seed)["value"]) == [0.0]
        for quantity, layers in (("cos_mean", 3), ("token_norm", 3), *((s, 2) for s in STRENGTHS)):
            rows = values(table, quantity, seed)
            assert list(rows["step"]) == [step for step in (0, 5, 10) for _ in range(layers)]
            assert list(rows["layer"]) == 3 * list(range(layers))
    assert set(table["scheme"]) == {"residual_scaling"}
    assert set(table["optimizer"]) == {"sgd"}
    assert set(table["tau_final"]) == {8.5}
    assert set(table["alpha_init"]) == {2**-0.5}


def test_schedules_are_recorded(table: pd.DataFrame) -> None:
    """lr: times 0.1 at 40 % and 80 % of 10 updates. tau: 1 + 7.5 t / 8."""
    assert list(values(table, "learning_rate")["value"]) == pytest.approx(
        [0.05, 0.005, 0.0005, 0.0005]
    )
    assert list(values(table, "tau")["value"]) == [1.0, 4.75, 8.5, 8.5]


def test_bleu_is_of_the_least_validation_loss(table: pd.DataFrame) -> None:
    for seed in (0, 1):
        losses = values(table, "valid_loss", seed)
        best = losses.loc[losses["value"].idxmin(), "step"]
        for quantity in ("sacrebleu", "bleu_tokenized"):
            row = values(table, quantity, seed)
            assert list(row["step"]) == [best]
            assert row["value"].between(0, 100).all()


def test_only_the_best_weights_stay(table: pd.DataFrame, folder: Path) -> None:
    left = sorted(path.name for path in (folder / "checkpoints").iterdir())
    assert [name for name in left if name.endswith(".pt")] == [
        name for name in left if name.endswith(".best.pt")
    ]
    assert sum(name.endswith(".best.pt") for name in left) == 2


def test_the_same_seed_gives_the_same_table_and_another_does_not(
    folder: Path, table: pd.DataFrame
) -> None:
    again = translation.run(tiny.settings(folder), Context("tiny", 1))
    pd.testing.assert_frame_equal(again, table, check_exact=True)
    other = translation.run(tiny.settings(folder, n_seeds=1), Context("tiny", 2))
    assert not np.isclose(
        values(other, "valid_loss")["value"], values(table, "valid_loss")["value"]
    ).any()


def test_a_run_depends_on_its_case_and_index_alone(folder: Path, table: pd.DataFrame) -> None:
    own = translation.run(tiny.settings(folder, n_seeds=1, depth=[1, 2]), Context("other", 1))
    mine = own[own["depth"] == 2].reset_index(drop=True)
    first = table[table["seed"] == 0].reset_index(drop=True)
    pd.testing.assert_frame_equal(mine, first, check_exact=True)


def test_without_a_score_nothing_is_decoded(folder: Path, table: pd.DataFrame) -> None:
    bare = translation.run(tiny.settings(folder, score=False), Context("tiny", 1))
    scored = table["quantity"].isin(["sacrebleu", "bleu_tokenized"])
    pd.testing.assert_frame_equal(bare, table[~scored].reset_index(drop=True), check_exact=True)


def test_a_method_that_is_left_out_has_an_empty_table(folder: Path) -> None:
    empty = translation.run(tiny.settings(folder, n_seeds=0), Context("tiny", 1))
    assert len(schema(TranslationSettings).validate(empty)) == 0


@pytest.mark.parametrize("scheme", ["post_ln_xavier", "pre_ln_xavier", "rezero", "t_fixup"])
def test_every_method_trains(folder: Path, scheme: str) -> None:
    """With Adam and no tau; the loss of the training batches falls within 40 updates."""
    training = {"optimizer": "adam", "lr": 0.01, "tau": None, "steps": 40, "schedule": "constant"}
    chosen = tiny.settings(folder, scheme=scheme, n_seeds=1, beam=1, training=training)
    own = schema(TranslationSettings).validate(translation.run(chosen, Context("tiny", 1)))
    losses = list(values(own, "valid_loss")["value"])
    assert losses[-1] < losses[0] - 0.3
    assert set(values(own, "tau")["value"]) == {1.0}
    assert bool(own["quantity"].isin(STRENGTHS).any()) == (scheme == "rezero")


@pytest.mark.parametrize("scheme", ["post_ln_qk_norm", "post_ln_rotary", "deepnorm"])
def test_any_record_trains_and_translates(folder: Path, scheme: str) -> None:
    chosen = tiny.settings(folder, scheme=scheme, n_seeds=1, beam=2)
    own = schema(TranslationSettings).validate(translation.run(chosen, Context("tiny", 1)))
    assert set(own["scheme"]) == {scheme} and len(values(own, "sacrebleu")) == 1
    losses = list(values(own, "valid_loss")["value"])
    assert losses[-1] != losses[0] and np.isfinite(losses).all()


TAUS = {  # at steps 0, 2 and 3 of a warm-up of 4
    "none": ({"tau": None}, [1.0, 1.0, 1.0]),
    "from_one": ({"tau": 8.5, "tau_form": "from_one"}, [1.0, 4.75, 6.625]),
    "from_zero": ({"tau": 8.5, "tau_form": "from_zero"}, [0.0, 4.25, 6.375]),
}


@pytest.mark.parametrize("form", TAUS)
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("scheme", tiny.METHODS)
def test_every_scheme_trains_with_every_optimizer_and_form_of_tau(
    folder: Path, scheme: str, optimizer: str, form: str
) -> None:
    """Three updates change the loss and nothing diverges; beam 5 scores one form, for time."""
    tau, expected = TAUS[form]
    training = tau | {"optimizer": optimizer, "lr": 0.002, "schedule": "constant", "steps": 3}
    training["tau_warmup_steps"] = 4 if tau["tau"] else 0
    size = {"depth": 1, "n_seeds": 1, "evaluate_every": 2, "probe_steps": [0], "beam": 5}
    scored = form == "from_one"
    chosen = tiny.settings(folder, scheme=scheme, training=training, score=scored, **size)
    own = schema(TranslationSettings).validate(translation.run(chosen, Context("tiny", 1)))
    assert list(values(own, "tau")["value"]) == pytest.approx(expected)
    losses = list(values(own, "valid_loss")["value"])
    assert len(losses) == 3 and losses[-1] != losses[0]
    assert list(values(own, "diverged")["value"]) == [0.0]
    assert set(own["optimizer"]) == {optimizer}
    assert len(values(own, "sacrebleu")) == len(values(own, "bleu_tokenized")) == scored


# ---------------------------------------------------------------- a killed run


def test_resume_after_sigkill_gives_the_same_table(
    tmp_path: Path, folder: Path, table: pd.DataFrame
) -> None:
    """A real process, killed by SIGKILL in the middle of the first run; then resumed here."""
    (tmp_path / "settings.json").write_text(json.dumps(tiny.record(folder)), encoding="utf-8")
    checkpoints = tmp_path / "checkpoints"
    command = [sys.executable, str(TINY), str(tmp_path / "settings.json"), str(checkpoints), "7"]
    killed = subprocess.run(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()[-500:]
    assert [path.name[-12:] for path in sorted(checkpoints.glob("*seed0-*-*.pt"))] == [
        "000000006.pt",
        "000000007.pt",
    ]
    context = Context("tiny", 1, checkpoints=str(checkpoints))
    resumed = translation.run(tiny.settings(folder), context)
    pd.testing.assert_frame_equal(resumed, table, check_exact=True)


def test_a_run_that_diverges_ends_and_the_others_go_on(folder: Path) -> None:
    wild = {"lr": 1e3, "schedule": "constant", "steps": 30}
    table = schema(TranslationSettings).validate(
        translation.run(tiny.settings(folder, training=wild), Context("tiny", 1))
    )
    for seed in (0, 1):
        assert list(values(table, "diverged", seed)["value"]) == [1.0]
        assert 0 in set(values(table, "valid_loss", seed)["step"])
        assert list(values(table, "sacrebleu", seed)["step"]) == [0]


# ---------------------------------------------------------------- parts


def small(folder: Path, scheme: str = "residual_scaling") -> tuple[Seq2Seq, Batches]:
    chosen = tiny.settings(folder, scheme=scheme, dropout=0.0)
    data = prepared(chosen, folder / "corpora")
    network = build(chosen, data, next(chosen.cases()), torch.Generator().manual_seed(3))
    return network, Batches(data.train, 60, seed=1)


def test_token_statistics_are_those_of_single_sentences() -> None:
    """Against a loop over sentences and pairs with torch's own cosine; padding is garbage."""
    x = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    lengths = (5, 2, 3)
    real = torch.arange(5) < torch.tensor(lengths)[:, None]
    x[~real] = 1e6
    means, norms = [], []
    for b, n in enumerate(lengths):
        rows = x[b, :n]
        pairs = [
            float(functional.cosine_similarity(rows[i], rows[j], dim=0))
            for i in range(n)
            for j in range(n)
            if i != j
        ]
        means.append(np.mean(pairs))
        norms += rows.norm(dim=1).tolist()
    found = token_statistics([x, torch.ones_like(x)], real)
    np.testing.assert_allclose(found["cos_mean"], [np.mean(means), 1.0], rtol=1e-12)
    np.testing.assert_allclose(found["token_norm"], [np.mean(norms), 2.0], rtol=1e-12)


def test_probed_sentences_are_spread_and_have_pairs(folder: Path) -> None:
    data = prepared(tiny.settings(folder), folder / "corpora")
    tokens, real = probe_batch(data, 4, "cpu")
    assert tokens.shape == real.shape and len(tokens) == 4
    assert (real.sum(1) >= 2).all()
    everything, _ = probe_batch(data, 10_000, "cpu")
    assert len(everything) == (data.valid.source.lengths >= 2).sum()


def test_strengths_start_as_the_scheme_says(folder: Path) -> None:
    for name, start in (("residual_scaling", 2**-0.5), ("rezero", 0.0), ("post_ln_xavier", 1.0)):
        found = strengths(small(folder, name)[0])
        assert set(found) == set(STRENGTHS)
        assert all(bool((alpha == start).all()) and len(alpha) == 2 for alpha in found.values())


def test_two_jobs_prepare_the_text_once(folder: Path, tmp_path: Path) -> None:
    """Started together on an empty cache: both find one folder."""
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from pathlib import Path\n"
        "import tiny_translation as tiny\n"
        "from sigprop.experiments.translation.model import prepared\n"
        "chosen = tiny.settings(Path(sys.argv[2]))\n"
        "print(prepared(chosen, sys.argv[3]).folder)\n"
    )
    command = [sys.executable, "-c", program, str(TINY.parent), str(folder), str(tmp_path / "c")]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    jobs = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) for _ in range(2)]
    answers = {job.communicate()[0] for job in jobs}
    assert len(answers) == 1 and all(job.returncode == 0 for job in jobs)
    assert len(list((tmp_path / "c").glob("files-*"))) == 1


# ---------------------------------------------------------------- at initialization


def test_step_0_of_training_is_what_the_initial_table_measures(
    folder: Path, table: pd.DataFrame
) -> None:
    record = tiny.record(folder)
    shared = ("data", "cache", "d_model", "d_ff", "n_heads", "depth", "n_seeds", "scheme")
    own = {key: record[key] for key in (*shared, "probe_sentences")}
    own["residual"] = {"coefficient": 1.0, "depth_power": 0.5}
    chosen = parse(TranslationInitSettings, own)
    initial = schema(TranslationSettings).validate(translation_init.run(chosen, Context("init", 1)))
    assert set(initial["step"]) == {0}
    for quantity in ("cos_mean", "token_norm"):
        there = values(table, quantity)
        there = there[there["step"] == 0]
        np.testing.assert_allclose(values(initial, quantity)["value"], there["value"], rtol=1e-5)


# ---------------------------------------------------------------- bad settings


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scheme": "post"}, "scheme: 'post' is not allowed"),
        ({"depth": 0}, "depth.*0 is not allowed"),
        ({"n_heads": 3}, "d_model=16 must be even and a multiple of n_heads=3"),
        ({"share": "all"}, "share=all needs data.shared_vocabulary=true"),
        ({"probe_steps": 11}, "probe_steps=11 lies beyond training.steps=10"),
        ({"n_seeds": -1}, "n_seeds: -1 is not allowed"),
        ({"heated": ["decode"]}, "heated"),
        ({"training": {"tau": 0.0}}, "training.tau: 0.0 is not allowed"),
        ({"training": {"label_smoothing": 1.0}}, "training.label_smoothing: 1.0 is not allowed"),
        ({"training": {"tua": 1.0}}, "training.tua: unknown key; did you mean"),
    ],
)
def test_refuses(folder: Path, changes: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        tiny.settings(folder, **changes)
    assert "\n" not in str(caught.value)


def test_a_sentence_beyond_max_tokens_is_named(folder: Path) -> None:
    chosen = tiny.settings(
        folder, max_tokens=16, data=tiny.record(folder)["data"] | {"bpe_size": 1}
    )
    with pytest.raises(UserError, match=r"max_tokens=16 is below \d+, the longest sentence of the"):
        translation.run(chosen, Context("tiny", 1))
