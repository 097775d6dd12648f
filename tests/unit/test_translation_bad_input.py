"""Text that cannot be used, given to `sigprop run` as a user would: one line, exit code 1, and
nothing left behind but empty folders.
"""

import gzip
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import tiny_translation as tiny
import torch

from sigprop.cli.main import main
from sigprop.experiments.translation import sources as translation_sources
from sigprop.tasks.translation.corpora import IWSLT14_TEST

N = 120
ZEROS = "0" * 64
MEMBER = "de-en/IWSLT14.TED.tst2011.de-en.en.xml"
TRAIN = "de-en/train.tags.de-en.en"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    torch.set_num_threads(1)
    tiny.write_text(tmp_path, N)
    return tmp_path


def run(folder: Path, data: dict[str, Any], **changes: Any) -> None:
    """`sigprop run translation_ours` with this text, tiny otherwise."""
    training = {"steps": 2, "tau_warmup_steps": 1, "log_every": 2}
    chosen = {"n_seeds": 1, "depth": 1, "evaluate_every": 2, "probe_steps": [0], "cache": None}
    settings = tiny.record(folder, **chosen | changes, training=training)
    settings["data"] = {"bpe_size": 20} | data
    out = folder / "out"
    main(
        [
            *("run", "translation_ours", "--settings", json.dumps(settings)),
            *("--checkpoints", str(out / "checkpoints" / "translation_ours")),
            *("--output", str(out / "data" / "table.parquet"), "--device", "cpu"),
        ]
    )


def refused(folder: Path, data: dict[str, Any], **changes: Any) -> str:
    with pytest.raises(SystemExit) as left:
        run(folder, data, **changes)
    line = left.value.code  # a text: Python prints it on standard error and exits with 1
    assert isinstance(line, str) and line.startswith("sigprop: ") and "\n" not in line
    files = {path.name for path in (folder / "out").rglob("*") if path.is_file()}
    assert files <= {".lock"}, "something half-written stayed"
    assert not list((folder / "out").rglob("*.best.pt"))
    return line.removeprefix("sigprop: ")


# ---------------------------------------------------------------- archives


def archive(folder: Path, change: dict[str, bytes | None] | None = None) -> Path:
    """An archive of IWSLT'14's layout; `change` replaces, removes or adds members."""
    files: dict[str, bytes | None] = {"de-en/README": b"x\n"}
    for language in ("de", "en"):
        lines = (folder / f"text.{language}").read_bytes().splitlines()
        files[f"de-en/train.tags.de-en.{language}"] = b"\n".join([b"<url>u</url>", *lines, b""])
        for name in IWSLT14_TEST:
            segments = (b'<seg id="%d"> %s </seg>\n' % (i, lines[i]) for i in range(5))
            files[f"de-en/{name}.de-en.{language}.xml"] = b"".join(segments)
    path = folder / "de-en.tgz"
    with tarfile.open(path, "w:gz") as tar:
        for name, data in (files | (change or {})).items():
            if data is not None:
                info = tarfile.TarInfo(name)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    return path


def test_a_good_archive_is_used(folder: Path) -> None:
    """The others fail for what they change alone."""
    run(folder, {"source": "iwslt14", "path": str(archive(folder))})
    assert set(pd.read_parquet(folder / "out/data/table.parquet")["corpus"]) == {"iwslt14"}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({MEMBER: None}, f"de-en.tgz: member {MEMBER} is missing; give the original de-en.tgz"),
        ({TRAIN: b"one\n"}, f"train.tags.de-en.de has {N} text lines, {TRAIN} has 1; line n of"),
        ({MEMBER: b'<seg id="1"> x </seg>'}, f"has 5 text lines, {MEMBER} has 1; line n of"),
        ({TRAIN: b"one\ntwo\nf\xfcr\n"}, f"{TRAIN}, line 3: not UTF-8 (byte 0xfc); convert it"),
        ({TRAIN: b""}, f"{TRAIN}: empty; it must hold one sentence a line"),
        ({"../evil": b"x"}, "member '../evil' lies outside the archive's folder; do not use"),
        ({"/etc/evil": b"x"}, "member '/etc/evil' lies outside the archive's folder; do not use"),
    ],
)
def test_a_bad_archive(folder: Path, change: dict[str, bytes | None], says: str) -> None:
    path = archive(folder, change)
    assert says in refused(folder, {"source": "iwslt14", "path": str(path)})
    assert not list(folder.parent.glob("evil"))


@pytest.mark.parametrize("cut", [1, 100, 1000])
def test_a_truncated_archive(folder: Path, cut: int) -> None:
    path = archive(folder)
    path.write_bytes(path.read_bytes()[:-cut])
    line = refused(folder, {"source": "iwslt14", "path": str(path)})
    assert line.startswith(f"{path}: truncated or not a tar archive")
    assert line.endswith("fetch it again")


def test_a_wrong_checksum(folder: Path) -> None:
    data = {"source": "iwslt14", "path": str(archive(folder)), "sha256": {"de-en.tgz": ZEROS}}
    line = refused(folder, data)
    assert "de-en.tgz: sha256 is " in line and f"expected {ZEROS}; the file is damaged" in line


@pytest.mark.parametrize(("source", "name"), [("iwslt14", "de-en.tgz"), ("multi30k", None)])
def test_no_network(
    folder: Path, source: str, name: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    nobody = dict.fromkeys(translation_sources.URLS, "http://127.0.0.1:9/x")
    monkeypatch.setattr(translation_sources, "URLS", nobody)
    line = refused(folder, {"source": source})
    place = folder / "out" / "checkpoints" / "corpora" / "downloads" / (name or "train.de.gz")
    assert "http://127.0.0.1:9/x: cannot be downloaded (" in line
    assert line.endswith(f"put it at {place}, or set path")


# ---------------------------------------------------------------- text files


def write(folder: Path, german: bytes | None = None, english: bytes | None = None) -> str:
    for language, content in (("de", german), ("en", english)):
        if content is not None:
            (folder / f"text.{language}").write_bytes(content)
    return str(folder / "text")


def mended(folder: Path, change: Callable[[bytes], bytes]) -> str:
    return write(folder, *(change((folder / f"text.{x}").read_bytes()) for x in ("de", "en")))


@pytest.mark.parametrize(
    ("german", "says"),
    [
        (b"eins\nzwei\n", f"text.de has 2 lines, {{folder}}/text.en has {N}; line n of one must"),
        (b"", "text.de: empty; it must hold one sentence a line"),
        (b"eins\nzwei\nf\xfcr\n", "text.de, line 3: not UTF-8 (byte 0xfc); convert it with `iconv"),
        ("ja\n".encode("utf-16"), "text.de, line 1: not UTF-8 (byte 0xff)"),
        (b"\n" * N, f"no train pair is left of {N} (dropped by rule: {{{{'empty': {N}"),
        (b"a\n" * N, "training text: no word of two letters or more; give more text"),
    ],
)
def test_bad_text(folder: Path, german: bytes, says: str) -> None:
    stem = write(folder, german, german if german == b"a\n" * N else None)
    line = refused(folder, {"source": "files", "path": stem})
    assert says.format(folder=folder) in line


def test_no_such_text(folder: Path) -> None:
    line = refused(folder, {"source": "files", "path": str(folder / "talks")})
    assert line.startswith(f"{folder / 'talks.de'}: no such file; path is the stem")
    line = refused(folder, {"source": "iwslt14", "path": str(folder)})
    assert line.startswith(f"{folder}: is a folder; set path to de-en.tgz")


def test_a_truncated_gzip(folder: Path) -> None:
    whole = gzip.compress((folder / "text.de").read_bytes())
    (folder / "text.de").unlink()
    (folder / "text.de.gz").write_bytes(whole[:-20])
    line = refused(folder, {"source": "files", "path": str(folder / "text")})
    assert line.startswith(f"{folder / 'text.de.gz'}: truncated or damaged gzip")


def test_sentences_beyond_every_limit(folder: Path) -> None:
    """Training pairs above `max_length` are dropped and counted; with none left it is an error.

    What is longer than the model has positions is an error at once.
    """
    stem = str(folder / "text")
    line = refused(folder, {"source": "files", "path": stem, "max_length": 2, "min_length": 2})
    assert f"no train pair is left of {N} (dropped by rule: {{'empty': 0, 'length': {N}" in line
    long = mended(folder, lambda text: text + b"hund " * 60 + b"\n")
    with pytest.raises(SystemExit, match=r"max_tokens=16 is below \d+, the longest sentence of"):
        run(folder, {"source": "files", "path": long}, max_tokens=16)
    assert not list((folder / "out").rglob("*.parquet"))


def test_byte_order_marks_carriage_returns_and_empty_lines_are_no_error(folder: Path) -> None:
    """The empty pair is dropped and counted, the text is that of clean files."""
    run(folder, {"source": "files", "path": str(folder / "text")})
    out = folder / "out"
    (first,) = (out / "checkpoints/corpora").glob("files-*")
    mended(folder, lambda text: b"\xef\xbb\xbf" + b"\r\n" + text.replace(b"\n", b"\r\n"))
    out.rename(folder / "before")
    run(folder, {"source": "files", "path": str(folder / "text")})
    (second,) = (out / "checkpoints/corpora").glob("files-*")
    for name in ("train.npz", "test.npz", "codes.txt", "valid.en.txt"):
        before = folder / "before/checkpoints/corpora" / first.name / name
        assert before.read_bytes() == (second / name).read_bytes(), name
    assert json.loads((second / "record.json").read_text())["dropped"]["empty"] == 1


# ---------------------------------------------------------------- subwords


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({"bpe_size": "unigram"}, "data.bpe_size: 'unigram' is not allowed; input should be a"),
        ({"subwords": "unigram"}, "data.subwords: unknown key; allowed: source, path,"),
        ({"bpe_model": "sentencepiece"}, "data.bpe_model: unknown key; did you mean 'bpe_size'?"),
    ],
)
def test_an_unknown_subword_model(folder: Path, data: dict[str, Any], says: str) -> None:
    line = refused(folder, {"source": "files", "path": str(folder / "text")} | data)
    assert says in line and line.startswith("experiments.translation_ours.")
