"""Parallel text made ready for training: cleaned, split into subwords, numbered, kept in a folder.

    read -> tokenize -> drop by length -> lower-case -> split -> byte pairs -> numbers -> folder

The folder's name holds a digest of the settings, the source files, the code and the two libraries
that decide the result, so equal data are prepared once and anything else gets a folder of its own.
"""

import hashlib
import importlib.metadata
import json
import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from sigprop.artifacts.errors import UserError
from sigprop.artifacts.files import sha256, write_json
from sigprop.artifacts.progress import progress
from sigprop.artifacts.sources import code_digest
from sigprop.experiments.translation.settings import TranslationDataSettings
from sigprop.experiments.translation.sources import locate, stem_of
from sigprop.tasks.translation import bleu, corpora, subwords, text
from sigprop.tasks.translation.archives import CorpusError
from sigprop.tasks.translation.bleu import Bleu
from sigprop.tasks.translation.corpora import VALID_EVERY, Corpus
from sigprop.tasks.translation.pairs import Pairs, Ragged
from sigprop.tasks.translation.subwords import Encoder, Vocabulary
from sigprop.tasks.translation.text import LengthRule, Pair

SPLITS = ("train", "valid", "test")
RECORD = "record.json"
LIBRARIES = ("sacremoses", "subword-nmt")
_STALE_S = 24 * 3600.0  # a temporary folder this old belongs to a writer that was killed


def prepare(settings: TranslationDataSettings, cache: str | Path) -> Path:
    """The folder with the data of `settings` under `cache`, made unless it is there.

    It appears under its name only when it is complete. Downloads are kept in `cache`/downloads.

    Raises:
        UserError: one line for a source that is absent, damaged, unsafe or has another checksum,
            for text that is not parallel or not UTF-8, and for too little text.
    """
    cache = Path(cache)
    files = locate(settings, cache / "downloads")
    inputs = {
        name: {"sha256": sha256(path), "bytes": path.stat().st_size} for name, path in files.items()
    }
    folder = cache / f"{settings.source}-{_digest(settings, inputs)}"
    if (folder / RECORD).is_file():
        return folder
    try:
        cache.mkdir(parents=True, exist_ok=True)
        for stale in cache.glob(f".{folder.name}.*"):
            if time.time() - stale.stat().st_mtime > _STALE_S:
                shutil.rmtree(stale, ignore_errors=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=cache))
    except OSError as error:
        raise UserError(
            f"{cache}: cannot write there ({error.strerror}); give a folder with write permission"
        ) from error
    try:
        corpus = _read(settings, files)
        record = _write(corpus, settings, temporary)
        record["inputs"] = inputs
        write_json(temporary / RECORD, record)
        # mkdtemp creates 0700; give the folder the mode that mkdir would have given.
        mask = os.umask(0)
        os.umask(mask)
        temporary.chmod(0o777 & ~mask)
        if folder.exists() and not (folder / RECORD).is_file():
            shutil.rmtree(folder)
        temporary.rename(folder)
    except CorpusError as error:
        raise UserError(str(error)) from error
    except OSError as error:
        # Another process may have finished the same folder meanwhile: then it is as good as ours.
        if not (folder / RECORD).is_file():
            raise UserError(f"{folder}: cannot be written ({error.strerror or error})") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder


def _digest(settings: TranslationDataSettings, inputs: dict[str, Any]) -> str:
    """12 hex digits that change whenever the prepared data would."""
    made_from = {
        "settings": settings.model_dump(
            exclude={"path", "valid_path", "test_path", "sha256"}
        ),  # where a file lies does not matter, what is in it does
        "inputs": [record["sha256"] for record in inputs.values()],
        "roles": [settings.valid_path is not None, settings.test_path is not None],
        "code": code_digest(__name__),
        "libraries": _versions(),
    }
    return hashlib.sha256(json.dumps(made_from, sort_keys=True).encode()).hexdigest()[:12]


def _versions() -> dict[str, str]:
    return {name: importlib.metadata.version(name) for name in LIBRARIES}


def _read(settings: TranslationDataSettings, files: dict[str, Path]) -> Corpus:
    match settings.source:
        case "embedded":
            return corpora.read_embedded(next(iter(files.values())))
        case "iwslt14":
            return corpora.read_iwslt14(files["de-en.tgz"])
        case "multi30k":
            return corpora.read_multi30k(files)
        case "files":
            given = (settings.path, settings.valid_path, settings.test_path)
            stems = [None if path is None else stem_of(path) for path in given]
            source, target = settings.languages
            return corpora.read_files(stems[0] or "", (source, target), *stems[1:])


def _tokenized(pairs: Sequence[Pair], languages: Sequence[str], split: str) -> list[Pair]:
    with progress(2 * len(pairs), f"tokenizing {split}", "sentences") as bar:
        sides = [
            text.tokenize((pair[side] for pair in pairs), language, bar.update)
            for side, language in enumerate(languages)
        ]
    return list(zip(*sides, strict=True))


def _write(corpus: Corpus, settings: TranslationDataSettings, folder: Path) -> dict[str, Any]:
    """Fill `folder` from raw pairs and return the record of what was done."""
    rule = LengthRule(settings.min_length, settings.max_length, settings.max_ratio)
    raw: dict[str, list[Pair]] = {
        "train": corpus.train[: settings.n_pairs],
        "valid": corpus.valid,
        "test": corpus.test,
    }
    tokens = {split: _tokenized(raw[split], corpus.languages, split) for split in SPLITS}

    # Drop by length (training text only), then move every 23rd pair, in the recipe's order.
    kept, dropped = text.clean(tokens["train"], rule)
    indices = {"train": kept}
    if not corpus.valid:
        indices["valid"], indices["train"] = text.every(indices["train"], VALID_EVERY)
    if not corpus.test:
        # Positions 1, 24, 47, ... of the cleaned text. Like the validation pairs they have
        # neighbors in the training text, so scores on them are optimistic.
        step = VALID_EVERY - (not corpus.valid)
        indices["test"], indices["train"] = text.every(indices["train"], step, 1)
    chosen = {split: [raw["train"][i] for i in places] for split, places in indices.items()}
    raw |= chosen
    tokens |= {split: [tokens["train"][i] for i in places] for split, places in indices.items()}
    for split in SPLITS:
        if not raw[split]:
            raise CorpusError(
                f"{corpus.name}: no {split} pair is left of {len(corpus.train)} (dropped by rule: "
                f"{dropped}); give more text, or wider min_length, max_length, max_ratio"
            )
    if settings.lowercase:
        tokens = {s: [(a.lower(), b.lower()) for a, b in both] for s, both in tokens.items()}

    # Byte pairs from the training text of both languages, source first.
    with progress(settings.bpe_size, "learning byte pairs", "merges") as bar:
        lines = (pair[side] for side in (0, 1) for pair in tokens["train"])
        encoder = Encoder(subwords.learn(lines, settings.bpe_size, bar.update))
    total = sum(2 * len(both) for both in tokens.values())
    with progress(total, "splitting words", "sentences") as bar:
        units = {
            split: [list(encoder.split((p[side] for p in both), bar.update)) for side in (0, 1)]
            for split, both in tokens.items()
        }
    vocabularies = _vocabularies(units["train"], settings.shared_vocabulary)

    data = {
        split: Pairs(
            *(
                Ragged.of([vocabulary.encode(line) for line in side])
                for vocabulary, side in zip(vocabularies, units[split], strict=True)
            )
        )
        for split in SPLITS
    }
    for split in SPLITS:
        _save(folder / f"{split}.npz", data[split])
    _write_lines(folder / "codes.txt", encoder.codes)
    for language, vocabulary in zip(corpus.languages, vocabularies, strict=True):
        _write_lines(folder / f"vocabulary.{language}.txt", vocabulary.dump())
    target = corpus.languages[1]
    for split in ("valid", "test"):
        for side, language in enumerate(corpus.languages):
            sentences = [_one_line(pair[side]) for pair in raw[split]]
            _write_lines(folder / f"{split}.{language}.txt", _joined(sentences))
        _write_lines(folder / f"{split}.tokens.{target}.txt", _joined(p[1] for p in tokens[split]))

    return {
        "source": corpus.name,
        "licence": corpus.licence,
        "languages": list(corpus.languages),
        "settings": settings.model_dump(exclude={"path", "valid_path", "test_path"}),
        "raw_train_pairs": len(corpus.train[: settings.n_pairs]),
        "dropped": dropped,
        "splits": {
            split: {
                "pairs": len(data[split]),
                "tokens": [len(data[split].source.tokens), len(data[split].target.tokens)],
                "longest": [int(x.lengths.max()) for x in (data[split].source, data[split].target)],
                "unknown": [
                    int((x.tokens == subwords.UNK).sum())
                    for x in (data[split].source, data[split].target)
                ],
                "empty": sum(not (a and b) for a, b in tokens[split]),
            }
            for split in SPLITS
        },
        "merges": encoder.n_merges,
        "vocabulary": [len(vocabulary) for vocabulary in vocabularies],
        "published": dict(corpus.published),
        "agrees_with_published": _agreement(corpus, {s: len(data[s]) for s in SPLITS}),
        "scaled_down": _scaled_down(corpus, len(data["train"])),
        "libraries": _versions(),
        "files": {path.name: sha256(path) for path in sorted(folder.iterdir())},
    }


def _vocabularies(units: Sequence[list[str]], shared: bool) -> list[Vocabulary]:
    counts = [Counter(unit for line in side for unit in line.split()) for side in units]
    if shared:
        counts = [counts[0] + counts[1]] * 2
    return [Vocabulary.of(count) for count in counts]


def _agreement(corpus: Corpus, counts: dict[str, int]) -> dict[str, bool]:
    """Per split whether the count is the published one: test exactly, the others within 0.1 %.

    The tokenizer's version moves a few pairs across the length rule, hence the tolerance.
    """
    return {
        split: abs(counts[split] - number) <= (0 if split == "test" else 0.001 * number)
        for split, number in corpus.published.items()
    }


def _scaled_down(corpus: Corpus, n_train: int) -> str:
    """How the data differ from the paper's, in words; empty when they do not."""
    paper = 160_239
    if corpus.name == "iwslt14":
        near = abs(n_train - paper) <= 0.001 * paper
        return "" if near else f"{n_train:,} training pairs, IWSLT'14 De-En has {paper:,}"
    what = {
        "embedded": "Home Assistant's interface strings",
        "multi30k": "Multi30k image captions",
        "files": "the user's own text",
    }[corpus.name]
    return f"IWSLT'14 De-En ({paper:,} training pairs) → {what} ({n_train:,})"


# ---------------------------------------------------------------- the folder


def _one_line(sentence: str) -> str:
    return " ".join(sentence.split())


def _joined(lines: Iterable[str]) -> str:
    return "".join(line + "\n" for line in lines)


def _write_lines(path: Path, content: str) -> None:
    path.write_text(content, encoding="utf-8", newline="\n")


def _save(path: Path, data: Pairs) -> None:
    np.savez(
        path,
        source=data.source.tokens,
        source_offsets=data.source.offsets,
        target=data.target.tokens,
        target_offsets=data.target.offsets,
    )


def _load(path: Path) -> Pairs:
    with np.load(path, allow_pickle=False) as arrays:
        return Pairs(
            Ragged(arrays["source"], arrays["source_offsets"]),
            Ragged(arrays["target"], arrays["target_offsets"]),
        )


@dataclass(frozen=True)
class TranslationData:
    """A prepared corpus.

    Attributes:
        folder: where it lies.
        record: counts, checksums, vocabulary sizes, licence, what was scaled down.
        train, valid, test: numbered pairs, order as in the text.
        encoder: the byte pairs.
        vocabularies: of source and target; equal when shared.
    """

    folder: Path
    record: dict[str, Any]
    train: Pairs
    valid: Pairs
    test: Pairs
    encoder: Encoder
    vocabularies: tuple[Vocabulary, Vocabulary]

    @property
    def languages(self) -> tuple[str, str]:
        """Source and target language."""
        source, target = self.record["languages"]
        return source, target

    @cached_property
    def lowercase(self) -> bool:
        """Whether the text was lower-cased."""
        return bool(self.record["settings"]["lowercase"])

    def sentences(self, split: str, side: int = 1) -> list[str]:
        """Raw sentences of `valid` or `test`, one a pair: side 0 the source, 1 the target."""
        return self._lines(f"{split}.{self.languages[side]}.txt")

    def references(self, split: str) -> list[str]:
        """Target sentences of `valid` or `test` as Moses tokens, lower-cased if the data are."""
        return self._lines(f"{split}.tokens.{self.languages[1]}.txt")

    def _lines(self, name: str) -> list[str]:
        return (self.folder / name).read_text(encoding="utf-8").split("\n")[:-1]

    def encode(self, sentences: Sequence[str], side: int = 0) -> Ragged:
        """Numbers of new raw sentences, prepared as the source side of the data were.

        Raises UserError: a sentence without a word, or with more than `max_length` tokens (the
        message has its number, from 1).
        """
        limit = int(self.record["settings"]["max_length"])
        tokens = text.tokenize(sentences, self.languages[side])
        for number, line in enumerate(tokens, 1):
            count = len(line.split())
            if not 1 <= count <= limit:
                raise UserError(
                    f"sentence {number}: has {count} tokens, must have 1 to {limit}; split it"
                    if count
                    else f"sentence {number}: is empty; leave it out"
                )
        if self.lowercase:
            tokens = [line.lower() for line in tokens]
        units = self.encoder.split(tokens)
        return Ragged.of([self.vocabularies[side].encode(line) for line in units])

    def tokens(self, sentences: Iterable[Iterable[int]]) -> list[str]:
        """Lines of Moses tokens from decoded target numbers, subwords joined."""
        return [subwords.join(self.vocabularies[1].decode(numbers)) for numbers in sentences]

    def text(self, tokens: Iterable[str]) -> list[str]:
        """Plain target text from lines of Moses tokens."""
        return text.detokenize(tokens, self.languages[1])

    def bleu(self, split: str, sentences: Iterable[Iterable[int]]) -> tuple[Bleu, Bleu]:
        """sacreBLEU and tokenized BLEU of decoded target numbers for all of `valid` or `test`.

        `sentences` in the order of the corpus. Raises ValueError when their number is another.
        """
        tokens = self.tokens(sentences)
        raw = self.sentences(split)
        return (
            bleu.sacrebleu(self.text(tokens), raw, lowercase=self.lowercase),
            bleu.tokenized(tokens, self.references(split)),
        )


def load(folder: str | Path) -> TranslationData:
    """Read what `prepare` made; every file is checked against the record.

    Raises UserError: no prepared data there, or a file is absent or was changed.
    """
    folder = Path(folder)
    again = f"remove {folder} and prepare the data again"
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        files = dict(record["files"])
        source, target = record["languages"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{folder / RECORD}: no record of prepared data; {again}") from error
    for name, digest in files.items():
        path = folder / name
        if not path.is_file() or sha256(path) != digest:
            raise UserError(f"{path}: absent or changed since it was prepared; {again}")
    try:
        read = {split: _load(folder / f"{split}.npz") for split in SPLITS}
        return TranslationData(
            folder=folder,
            record=record,
            encoder=Encoder((folder / "codes.txt").read_text(encoding="utf-8")),
            vocabularies=(
                Vocabulary.parse((folder / f"vocabulary.{source}.txt").read_text("utf-8")),
                Vocabulary.parse((folder / f"vocabulary.{target}.txt").read_text("utf-8")),
            ),
            **read,
        )
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"{folder}: not readable ({error}); {again}") from error
