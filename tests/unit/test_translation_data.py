"""From a source to a folder of numbers: what it holds, when it is made, what is refused."""

import functools
import gzip
import http.server
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from sigprop.artifacts.errors import UserError
from sigprop.artifacts.files import sha256
from sigprop.experiments.settings import parse
from sigprop.experiments.translation import data as translation_data
from sigprop.experiments.translation import sources as translation_sources
from sigprop.experiments.translation.data import TranslationData, load, prepare
from sigprop.experiments.translation.settings import TranslationDataSettings as Settings
from sigprop.tasks.translation.corpora import MULTI30K
from sigprop.tasks.translation.subwords import EOS, join

ROOT = Path(__file__).resolve().parents[2]
N = 460  # pairs of the made-up text: 20 for validation, 20 for test


def settings(**changes: object) -> Settings:
    return parse(Settings, changes, root="data")


def sentence(number: int, language: str) -> str:
    """A sentence of six words and a full stop that says its number."""
    words = {
        "de": ["Der", "Hund", "sieht", "die", "Katze"],
        "en": ["The", "dog", "sees", "the", "cat"],
    }[language]
    return " ".join([*words[:3], f"{'abcdefghij'[number % 10]}{number}", *words[3:]]) + "."


@pytest.fixture
def stem(tmp_path: Path) -> str:
    for language in ("de", "en"):
        lines = (sentence(n, language) for n in range(N))
        (tmp_path / f"text.{language}").write_text("\n".join(lines) + "\n")
    return str(tmp_path / "text")


def files(stem: str, **changes: object) -> Settings:
    return settings(**{"source": "files", "path": stem, "bpe_size": 100} | changes)


def refusal(chosen: Settings, cache: Path) -> str:
    """The one line with which `chosen` is refused; nothing but the cache folder may remain."""
    with pytest.raises(UserError) as error:
        prepare(chosen, cache)
    assert "\n" not in str(error.value)
    left = [path for path in cache.rglob("*") if path.name != "downloads"]
    assert left == [], "something half-written stayed"
    return str(error.value)


# ---------------------------------------------------------------- the folder


@pytest.fixture
def data(stem: str, tmp_path: Path) -> TranslationData:
    return load(prepare(files(stem), tmp_path / "cache"))


def test_pairs_are_cleaned_split_and_numbered(data: TranslationData) -> None:
    assert {s: len(getattr(data, s)) for s in ("train", "valid", "test")} == {
        **{"train": N - 40, "valid": 20, "test": 20}
    }
    assert data.sentences("valid", 0) == [sentence(n, "de") for n in range(22, N, 23)]
    assert data.sentences("valid") == [sentence(n, "en") for n in range(22, N, 23)]
    first = sentence(22, "en")
    assert data.references("valid")[0] == first.lower().replace(".", " .")
    words = data.vocabularies[1].decode(data.valid.target[0])
    assert join(words) == data.references("valid")[0]
    assert data.train.source.tokens.dtype == np.int32
    assert all(data.train.source[i][-1] == EOS for i in range(len(data.train)))


def test_the_splits_share_no_pair_and_lose_none(data: TranslationData) -> None:
    numbers = [
        join(data.vocabularies[0].decode(part.source[i])).split()[3]
        for part in (data.train, data.valid, data.test)
        for i in range(len(part))
    ]
    known = [number for number in numbers if "<unk>" not in number]
    assert len(numbers) == N and len(set(known)) == len(known) > 0.9 * N


def test_the_record_says_what_was_done(data: TranslationData, stem: str) -> None:
    record = data.record
    assert record["source"] == "files" and record["languages"] == ["de", "en"]
    assert record["raw_train_pairs"] == N
    assert record["dropped"] == {"empty": 0, "length": 0, "ratio": 0, "word": 0}
    assert record["splits"]["train"]["pairs"] == N - 40
    assert record["splits"]["train"]["tokens"] == [
        *(len(data.train.source.tokens), len(data.train.target.tokens))
    ]
    assert record["splits"]["train"]["unknown"] == [0, 0]
    assert record["vocabulary"] == [len(vocabulary) for vocabulary in data.vocabularies]
    assert all(size % 8 == 0 for size in record["vocabulary"])
    assert record["merges"] == data.encoder.n_merges <= 100
    assert record["inputs"]["train.de"]["sha256"] == sha256(f"{stem}.de")
    assert "IWSLT'14 De-En (160,239 training pairs) → the user's own text" in record["scaled_down"]
    assert stem not in json.dumps(record)  # no path of this machine


def test_scores_of_the_references_themselves_are_100(stem: str, tmp_path: Path) -> None:
    data = load(prepare(files(stem, bpe_size=10), tmp_path / "cache"))
    assert data.record["splits"]["test"]["unknown"] == [0, 0]
    targets = [data.test.target[i] for i in range(len(data.test))]
    plain, community = data.bleu("test", targets)
    assert plain.label == "sacreBLEU (lower-cased)"
    assert "tok:none" in community.signature
    assert plain.score == pytest.approx(100) and community.score == pytest.approx(100)
    worse = data.bleu("test", [*targets[1:], targets[0]])
    assert all(score.score < 90 for score in worse)  # the order is that of the corpus
    with pytest.raises(ValueError, match="got 19 and 20"):
        data.bleu("test", targets[:19])


def test_new_sentences_take_the_same_path(data: TranslationData) -> None:
    numbers = data.encode([sentence(5, "de"), "Der Hund."])
    assert len(numbers) == 2
    assert join(data.vocabularies[0].decode(numbers[1])) == "der hund ."
    assert data.text(["the dog &apos;s cat ."]) == ["the dog's cat."]
    for bad, says in (
        (["Der Hund.", " "], "sentence 2: is empty"),
        (["w " * 176], "sentence 1: has 176 tokens, must have 1 to 175"),
    ):
        with pytest.raises(UserError, match=says):
            data.encode(bad)


def test_one_vocabulary_for_both_languages(stem: str, tmp_path: Path) -> None:
    data = load(prepare(files(stem, shared_vocabulary=True, lowercase=False), tmp_path / "c"))
    assert data.vocabularies[0] == data.vocabularies[1]
    assert data.references("valid")[0].startswith("The dog")
    assert data.lowercase is False


def test_own_validation_and_test_text(stem: str, tmp_path: Path) -> None:
    for name in ("valid", "test"):
        for language in ("de", "en"):
            (tmp_path / f"{name}.{language}").write_text(sentence(7, language) + "\n\n")
    chosen = files(stem, valid_path=str(tmp_path / "valid"), test_path=str(tmp_path / "test"))
    data = load(prepare(chosen, tmp_path / "cache"))
    assert (len(data.train), len(data.valid), len(data.test)) == (N, 2, 2)
    assert data.record["splits"]["valid"]["empty"] == 1  # kept: evaluation text is not filtered
    assert data.references("test") == [sentence(7, "en").lower().replace(".", " ."), ""]


# ---------------------------------------------------------------- the cache


def test_equal_data_are_prepared_once(
    stem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    folder = prepare(files(stem), cache)
    (tmp_path / "moved").mkdir()
    for language in ("de", "en"):
        Path(f"{stem}.{language}").rename(tmp_path / "moved" / f"other.{language}")
    monkeypatch.setattr(translation_data, "_read", lambda *a: pytest.fail("prepared again"))
    assert prepare(files(str(tmp_path / "moved" / "other")), cache) == folder


def test_settings_and_content_make_another_folder(stem: str, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    folders = {prepare(files(stem, **x), cache) for x in ({}, {"bpe_size": 90}, {"max_length": 50})}
    with Path(f"{stem}.de").open("a") as german, Path(f"{stem}.en").open("a") as english:
        german.write(sentence(N, "de") + "\n")
        english.write(sentence(N, "en") + "\n")
    folders.add(prepare(files(stem), cache))
    assert len(folders) == 4
    assert all(folder.name.startswith("files-") for folder in folders)


def test_two_preparations_give_the_same_bytes(stem: str, tmp_path: Path) -> None:
    one, two = (prepare(files(stem), tmp_path / name) for name in ("a", "b"))
    names = sorted(path.name for path in one.iterdir())
    assert names == sorted(path.name for path in two.iterdir())
    assert all((one / name).read_bytes() == (two / name).read_bytes() for name in names)


def test_a_writer_that_fails_leaves_nothing(
    stem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(translation_data, "_save", full)
    says = refusal(files(stem), tmp_path / "cache")
    assert says.endswith("cannot be written (No space left on device)")


def test_what_a_killed_writer_left_is_cleared_after_a_day(stem: str, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    folder = prepare(files(stem), cache)
    old, new = cache / f".{folder.name}.old", cache / f".{folder.name}.new"
    for stale in (old, new):
        stale.mkdir()
    os.utime(old, (time.time() - 2 * 86400,) * 2)
    (folder / "record.json").unlink()  # and an incomplete folder is made anew
    assert prepare(files(stem), cache) == folder
    assert (folder / "record.json").is_file() and new.exists() and not old.exists()


@pytest.mark.parametrize("name", ["train.npz", "codes.txt", "vocabulary.de.txt", "valid.en.txt"])
def test_a_changed_file_is_noticed(name: str, data: TranslationData) -> None:
    with (data.folder / name).open("ab") as stream:
        stream.write(b"x")
    with pytest.raises(UserError, match=f"{name}: absent or changed .* prepare the data again"):
        load(data.folder)


@pytest.mark.parametrize("record", [None, "{", "[]", '{"files": {}}'])
def test_a_folder_without_a_record_is_refused(record: str | None, tmp_path: Path) -> None:
    if record is not None:
        (tmp_path / "record.json").write_text(record)
    with pytest.raises(UserError, match="no record of prepared data"):
        load(tmp_path)


# ---------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("record", "says"),
    [
        ({"source": "wmt"}, "data.source: 'wmt' is not allowed; use 'embedded', 'iwslt14'"),
        ({"source": "files"}, "data: source=files needs path"),
        ({"valid_path": "x"}, "data: valid_path is for source=files only; source is embedded"),
        ({"languages": ["fr", "en"]}, "languages=['fr', 'en'] need source=files"),
        ({"source": "files", "path": "x", "languages": ["de", "de"]}, "are equal"),
        ({"languages": ["de"]}, "data.languages: "),
        ({"bpe_size": 0}, "data.bpe_size: 0 is not allowed"),
        ({"max_length": 3, "min_length": 4}, "max_length=3 is below min_length=4"),
        ({"max_ratio": 0.5}, "data.max_ratio: 0.5 is not allowed"),
        ({"sha256": {"de-en.tgz": "abc"}}, "sha256 of de-en.tgz must be 64 hex digits, got 'abc'"),
        ({"bpe": 1}, "data.bpe: unknown key; did you mean 'bpe_size'?"),
    ],
)
def test_bad_settings_are_one_line(record: dict, says: str) -> None:
    with pytest.raises(UserError) as error:
        settings(**record)
    assert says in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("iwslt14", "no such file; set path to de-en.tgz"),
        ("multi30k", "train.de.gz: no such file; set path to the folder"),
        ("embedded", "no such file; run `make env`"),
        ("files", "absent.de: no such file; path is the stem"),
    ],
)
def test_an_absent_source_says_what_to_give(source: str, says: str, tmp_path: Path) -> None:
    chosen = settings(source=source, path=str(tmp_path / "absent"))
    assert says in refusal(chosen, tmp_path / "cache")


@pytest.mark.parametrize(
    ("german", "says"),
    [
        (b"", "text.de: empty"),
        (b"eins\n", "text.de has 1 lines, "),
        (b"eins\n\xfc\n", "text.de, line 2: not UTF-8"),
        (b"\n" * N, "files: no train pair is left of 460 (dropped by rule: {'empty': 460"),
    ],
)
def test_bad_text_is_one_line_and_nothing_is_written(
    german: bytes, says: str, stem: str, tmp_path: Path
) -> None:
    Path(f"{stem}.de").write_bytes(german)
    assert says in refusal(files(stem), tmp_path / "cache")


def test_too_little_text_to_validate(tmp_path: Path) -> None:
    for language in ("de", "en"):
        (tmp_path / f"a.{language}").write_text("\n".join(["a b c"] * 22))
    says = refusal(files(str(tmp_path / "a")), tmp_path / "cache")
    assert "files: no valid pair is left of 22" in says


def test_a_cache_that_cannot_be_written(stem: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match=r"cache: cannot write there"):
        prepare(files(stem), tmp_path / "file" / "cache")


def multi30k(folder: Path) -> dict[str, str]:
    """A Multi30k of 200 pairs a split in `folder`; the digests of its files."""
    for name in MULTI30K.values():
        for language in ("de", "en"):
            text = "".join(sentence(n, language) + "\n" for n in range(200))
            (folder / f"{name}.{language}.gz").write_bytes(gzip.compress(text.encode(), mtime=0))
    return {path.name: sha256(path) for path in folder.glob("*.gz")}


def test_multi30k_by_path_must_be_the_published_files(tmp_path: Path) -> None:
    digests = multi30k(tmp_path)
    chosen = settings(source="multi30k", path=str(tmp_path))
    assert "train.de.gz: sha256 is " in refusal(chosen, tmp_path / "cache")
    chosen = settings(source="multi30k", path=str(tmp_path), sha256=digests, bpe_size=50)
    assert len(load(prepare(chosen, tmp_path / "cache")).train) == 200


def test_a_user_s_file_may_have_the_name_of_one_of_multi30k(tmp_path: Path) -> None:
    multi30k(tmp_path)
    prepare(files(str(tmp_path / "train")), tmp_path / "cache")
    digests = {"train.de.gz": "0" * 64}
    says = refusal(files(str(tmp_path / "train"), sha256=digests), tmp_path / "other")
    assert "train.de.gz: sha256 is" in says


# ---------------------------------------------------------------- download


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A web server of a folder on this machine, in place of the public ones."""
    handler = functools.partial(Quiet, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{running.server_address[1]}"
        names = [*translation_sources.URLS]
        monkeypatch.setattr(translation_sources, "URLS", {n: f"{address}/{n}" for n in names})
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        yield address
        running.shutdown()


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves files without writing a log; `cut` is served shorter than promised."""

    def log_message(self, *arguments: object) -> None:
        pass

    def copyfile(self, source, outputfile) -> None:  # type: ignore[no-untyped-def]
        data = source.read()
        outputfile.write(data[:-10] if (Path(self.directory) / "cut").exists() else data)


def test_downloads_are_checked_and_kept(server: str, tmp_path: Path) -> None:
    digests = multi30k(tmp_path)
    chosen = settings(source="multi30k", sha256=digests, bpe_size=50)
    folder = prepare(chosen, tmp_path / "cache")
    downloads = tmp_path / "cache" / "downloads"
    assert {path.name: sha256(path) for path in downloads.iterdir()} == digests
    for name in digests:
        (tmp_path / name).unlink()
    assert prepare(chosen, tmp_path / "cache") == folder  # no second download


@pytest.mark.parametrize("trouble", ["absent", "cut", "other"])
def test_a_download_that_fails_leaves_nothing(trouble: str, server: str, tmp_path: Path) -> None:
    digests = multi30k(tmp_path)
    says = "cannot be downloaded"
    if trouble == "absent":
        (tmp_path / "train.de.gz").unlink()
    elif trouble == "cut":
        (tmp_path / "cut").touch()
    else:
        digests["train.de.gz"], says = "0" * 64, "train.de.gz: sha256 is"
    text = refusal(settings(source="multi30k", sha256=digests), tmp_path / "cache")
    assert text.startswith(server) and says in text


def test_no_network_says_where_to_put_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(translation_sources, "URLS", {"de-en.tgz": "http://127.0.0.1:9/de-en.tgz"})
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    text = refusal(settings(source="iwslt14"), tmp_path / "cache")
    assert "http://127.0.0.1:9/de-en.tgz: cannot be downloaded" in text
    assert f"put it at {tmp_path / 'cache' / 'downloads' / 'de-en.tgz'}, or set path" in text


def test_public_addresses_are_encrypted_and_pinned() -> None:
    urls = dict(translation_sources.URLS)
    assert urls.pop("de-en.tgz").startswith("https://")
    assert len(urls) == 6
    assert all("/a3d2e0d26b56f3846f66a952536ffed4e401d05a/" in url for url in urls.values())


# ---------------------------------------------------------------- the real sources


def test_the_wheel_s_pin_is_read() -> None:
    name, digest = translation_sources.pinned_wheel()
    assert name.startswith("homeassistant-") and name.endswith("-py3-none-any.whl")
    assert len(digest) == 64


def test_the_embedded_default(tmp_path: Path) -> None:
    name, _ = translation_sources.pinned_wheel()
    if not translation_sources._fetched_wheel(name).is_file():
        pytest.skip(f"{name} was not fetched; run `make env`")
    data = load(prepare(settings(bpe_size=1000), tmp_path))
    record = data.record
    assert record["licence"].startswith("Apache-2.0")
    # Of the pinned wheel, so exact: any change here changes every result made from it.
    assert record["raw_train_pairs"] == 7094
    assert {s: record["splits"][s]["pairs"] for s in record["splits"]} == {
        **{"train": 6815, "valid": 774, "test": 375}
    }
    # Half of an evaluation set must not be known from training.
    known = {tuple(data.train.target[i]) for i in range(len(data.train))}
    assert not any(tuple(data.test.target[i]) in known for i in range(len(data.test)))


def stand_in(tmp_path: Path, *options: str) -> Path:
    """An archive of IWSLT'14's layout, made by a script that some machines have alongside the
    checkout; other machines skip, because the archive itself may not be passed on.
    """
    scripts = sorted(ROOT.parent.glob("*/data/make_iwslt14_like.py"))
    if not scripts:
        pytest.skip("no make_iwslt14_like.py in a folder next to the checkout")
    archive = tmp_path / "de-en.tgz"
    subprocess.run(
        [sys.executable, str(scripts[0]), "--out", str(archive), *options],
        check=True,
        capture_output=True,
    )
    return archive


def test_a_short_archive_equals_the_recipe_step_by_step(tmp_path: Path) -> None:
    """Pair counts and token counts (end marks included) are those of the recipe's own steps done
    with grep, sed, awk, the Perl tokenizer of Moses and the commands of subword-nmt.
    """
    archive = stand_in(tmp_path, "--edge-cases", "--limit", "1500")
    chosen = settings(source="iwslt14", path=str(archive))
    record = load(prepare(chosen, tmp_path / "cache")).record
    splits = {split: (x["pairs"], x["tokens"]) for split, x in record["splits"].items()}
    assert splits == {
        "train": (1_413, [22_207, 21_548]),
        "valid": (64, [1_071, 1_018]),
        "test": (152, [2_561, 2_496]),
    }
    assert record["merges"] == 4_645  # fewer than 10,000: then no pair occurs twice
    assert record["agrees_with_published"] == dict.fromkeys(splits, False)
    assert record["scaled_down"] == "1,413 training pairs, IWSLT'14 De-En has 160,239"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "dropped", "pairs"),
    [
        ((), (0, 0, 668), (27_101, 1_231, 2_014)),
        (("--edge-cases",), (2, 1, 669), (27_108, 1_232, 2_016)),
    ],
)
def test_the_whole_archive_of_iwslt14_s_layout(
    options: tuple[str, ...], dropped: tuple[int, ...], pairs: tuple[int, ...], tmp_path: Path
) -> None:
    chosen = settings(source="iwslt14", path=str(stand_in(tmp_path, *options)), bpe_size=100)
    record = load(prepare(chosen, tmp_path / "cache")).record
    assert tuple(record["dropped"][reason] for reason in ("empty", "length", "ratio")) == dropped
    assert tuple(record["splits"][x]["pairs"] for x in ("train", "valid", "test")) == pairs
