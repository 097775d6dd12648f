"""The settings file of Multi30k: it fits, its text takes the path of all text, and it trains."""

import gzip
from pathlib import Path
from typing import Any

import pytest
import torch

from sigprop.artifacts.files import sha256
from sigprop.experiments.config import load
from sigprop.experiments.context import Context
from sigprop.experiments.frames import schema
from sigprop.experiments.settings import parse
from sigprop.experiments.translation import data as translation_data
from sigprop.experiments.translation import simulation as translation
from sigprop.experiments.translation.data import TranslationData, prepare
from sigprop.experiments.translation.settings import TranslationDataSettings, TranslationSettings
from sigprop.experiments.translation.sources import locate
from sigprop.tasks.translation.corpora import MULTI30K, read_multi30k

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "config" / "multi30k.yaml"
METHODS = (
    *("translation_post_ln_adam", "translation_pre_ln_adam", "translation_rezero"),
    *("translation_t_fixup", "translation_post_ln_sgd", "translation_ours"),
)
PAIRS = {"train": 200, "val": 30, "test_2016_flickr": 20}


def block(name: str, **changes: Any) -> dict[str, Any]:
    """A method's settings as the file leaves them, with changes; `data`, `training` are merged."""
    record: dict[str, Any] = load("laptop", FILE).experiments[name].model_dump(mode="json")
    for key in ("data", "training"):
        record[key] |= changes.pop(key, {})
    return record | changes


def caption(stem: str, number: int, language: str) -> str:
    """A caption that names its file and its number."""
    kind, day = stem.split("_")[0], f"{'abcdefgh'[number % 8]}{number}"
    if language == "de":
        return f"Ein Hund rennt am {kind} {day} über den Strand."
    return f"A dog runs on {kind} {day} across the beach."


@pytest.fixture
def made_up(tmp_path: Path) -> dict[str, Any]:
    """`data` of a made-up Multi30k: folder and digests of its six files."""
    for stem, n_pairs in PAIRS.items():
        for language in ("de", "en"):
            text = "".join(caption(stem, n, language) + "\n" for n in range(n_pairs))
            (tmp_path / f"{stem}.{language}.gz").write_bytes(gzip.compress(text.encode(), mtime=0))
    digests = {path.name: sha256(path) for path in tmp_path.glob("*.gz")}
    assert sorted(PAIRS) == sorted(MULTI30K.values()) and len(digests) == 6
    return {"path": str(tmp_path), "sha256": digests, "bpe_size": 60}


# ---------------------------------------------------------------- the file


def test_only_translation_changes_and_all_methods_get_the_same_text() -> None:
    plain = load("laptop").model_dump(mode="json")
    ours = load("laptop", FILE).model_dump(mode="json")
    changed = {
        key for key, value in ours["experiments"].items() if value != plain["experiments"][key]
    }
    assert changed == set(METHODS)
    assert {**ours, "experiments": None} == {**plain, "experiments": None}
    texts = [ours["experiments"][name]["data"] for name in METHODS]
    assert all(text == texts[0] for text in texts)
    assert texts[0]["source"] == "multi30k" and texts[0]["lowercase"] is False


def test_every_method_has_the_same_size_budget_and_search() -> None:
    blocks = {name: block(name) for name in METHODS}
    first = blocks["translation_pre_ln_adam"]
    assert first["scheme"] == "pre_ln_xavier" and first["n_seeds"] >= 1
    for name, each in blocks.items():
        for key in ("depth", "d_model", "d_ff", "n_heads", "share", "dropout", "beam"):
            assert each[key] == first[key], (name, key)
        for key in ("steps", "batch_size", "schedule", "warmup_steps", "label_smoothing"):
            assert each["training"][key] == first["training"][key], (name, key)


def test_the_file_s_settings_train_and_score_cased_text(
    made_up: dict[str, Any], tmp_path: Path
) -> None:
    torch.set_num_threads(1)
    small = {"steps": 4, "warmup_steps": 2, "batch_size": 400}
    chosen = parse(
        TranslationSettings,
        block(
            "translation_ours",
            n_seeds=1,
            data=made_up,
            training=small,
            d_model=16,
            d_ff=16,
            n_heads=2,
            evaluate_every=2,
            probe_steps=[0],
            cache=str(tmp_path / "corpora"),
        ),
    )
    table = schema(TranslationSettings).validate(translation.run(chosen, Context("tiny", 1)))
    assert set(table["corpus"]) == {"multi30k"}
    assert {"valid_loss", "sacrebleu", "bleu_tokenized"} <= set(table["quantity"])
    rates = table[table["quantity"] == "learning_rate"].set_index("step")["value"]
    assert rates[4] == 0 and rates[2] > 0  # the rate ends at zero
    data = translation_data.load(prepare(chosen.data, tmp_path / "corpora"))
    check_splits(data)


def check_splits(data: TranslationData) -> None:
    """Official splits, none mixed, raw sentences as written."""
    assert {s: len(getattr(data, s)) for s in ("train", "valid", "test")} == {
        **{"train": 200, "valid": 30, "test": 20}
    }
    for split, stem in MULTI30K.items():
        if split != "train":
            expected = [caption(stem, n, "en") for n in range(PAIRS[stem])]
            assert data.sentences(split) == expected
            assert data.references(split)[0] == expected[0].replace(".", " .")
    plain, _ = data.bleu("test", [data.test.target[i] for i in range(20)])
    assert plain.label == "sacreBLEU (cased)"
    assert "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp" in plain.signature  # its defaults


# ---------------------------------------------------------------- the real files


@pytest.fixture
def real() -> dict[str, Any]:
    """`data` of the published files, which some machines have next to the checkout."""
    folders = sorted(ROOT.parent.glob("*/data/multi30k"))
    if not folders:
        pytest.skip("no data/multi30k in a folder next to the checkout; its terms keep it out")
    return {"path": str(folders[0])}


def test_the_published_files_have_their_digests_and_counts(
    real: dict[str, Any], tmp_path: Path
) -> None:
    chosen = parse(TranslationDataSettings, block("translation_ours", data=real)["data"])
    corpus = read_multi30k(locate(chosen, tmp_path))
    assert [len(part) for part in (corpus.train, corpus.valid, corpus.test)] == [29_000, 1014, 1000]
    assert corpus.train[0] == (
        "Zwei junge weiße Männer sind im Freien in der Nähe vieler Büsche.",
        "Two young, White males are outside near many bushes.",
    )
    assert not set(corpus.train) & set(corpus.test)


@pytest.mark.slow
def test_the_published_text_is_prepared_as_the_page_says(
    real: dict[str, Any], tmp_path: Path
) -> None:
    chosen = parse(TranslationDataSettings, block("translation_ours", data=real)["data"])
    record = translation_data.load(prepare(chosen, tmp_path)).record
    pairs = {split: part["pairs"] for split, part in record["splits"].items()}
    assert pairs == {"train": 28_984, "valid": 1014, "test": 1000}
    assert record["dropped"] == {"empty": 0, "length": 0, "ratio": 16, "word": 0}
    assert record["agrees_with_published"] == {"valid": True, "test": True}
    assert record["vocabulary"] == [4120, 4120]
