"""The four sources: the rules of each, and what a wrong file says."""

import gzip
import io
import json
import tarfile
import zipfile
from pathlib import Path

import pytest

from sigprop.tasks.translation import homeassistant
from sigprop.tasks.translation.archives import CorpusError
from sigprop.tasks.translation.corpora import (
    IWSLT14_TEST,
    MULTI30K,
    beside,
    evaluation_lines,
    read_embedded,
    read_files,
    read_iwslt14,
    read_multi30k,
    read_pairs,
    training_lines,
)


def refused(says: str) -> pytest.RaisesExc:
    return pytest.RaisesExc(CorpusError, match=says, check=lambda error: "\n" not in str(error))


# ---------------------------------------------------------------- IWSLT'14


def test_tagged_training_text() -> None:
    lines = [
        "<url>http://x</url>",
        "<keywords>a, b</keywords>",
        "<talkid>1</talkid>",
        "<title>Ein Titel</title>",
        "<description>TED Talk: Text.</description>",
        " Ein Satz mit <b> und & . ",
        "Vor <url> weg",
        "",
        "<reviewer>bleibt</reviewer>",
    ]
    assert training_lines(lines) == [
        *("Ein Titel", "TED Talk: Text.", "Ein Satz mit <b> und & ."),
        *("", "<reviewer>bleibt</reviewer>"),
    ]


def test_evaluation_text() -> None:
    lines = [
        '<?xml version="1.0" encoding="UTF-8"?>',
        "<title>kein Text</title>",
        '<seg id="1"> It’s ‘so’ &amp; so . </seg>  ',
        '  <seg id="23">No space</seg>',
        "</doc>",
    ]
    assert evaluation_lines(lines) == ["It's ‘so' &amp; so .", "  No space"]


def archive(path: Path, change: dict[str, str | None] | None = None) -> Path:
    """An archive of IWSLT'14's layout with one talk; `change` replaces or removes members."""
    files: dict[str, str | None] = {"de-en/README": "x\n", "de-en/train.en": "unused\n"}
    for side, language in (("Satz", "de"), ("sentence", "en")):
        files[f"de-en/train.tags.de-en.{language}"] = (
            f"<url>u</url>\n<title>{side} 1</title>\n{side} 2\n{side}\u2028 3\n"
        )
        for number, name in enumerate(IWSLT14_TEST):
            files[f"de-en/{name}.de-en.{language}.xml"] = (
                f'<doc>\n<seg id="1"> {side} {number} </seg>\n</doc>\n'
            )
    with tarfile.open(path, "w:gz") as tar:
        for name, text in (files | (change or {})).items():
            if text is not None:
                data = text.encode()
                info = tarfile.TarInfo(name)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    return path


def test_an_archive_of_iwslt14(tmp_path: Path) -> None:
    corpus = read_iwslt14(archive(tmp_path / "de-en.tgz"))
    assert corpus.languages == ("de", "en")
    assert corpus.train == [
        *[("Satz 1", "sentence 1"), ("Satz 2", "sentence 2"), ("Satz\u2028 3", "sentence\u2028 3")]
    ]
    assert corpus.valid == []  # to come out of the cleaned training text
    assert corpus.test == [(f"Satz {n}", f"sentence {n}") for n in range(5)]  # in this order
    assert corpus.published == {"train": 160_239, "valid": 7_283, "test": 6_750}


def test_a_missing_member_is_named(tmp_path: Path) -> None:
    name = "de-en/IWSLT14.TED.tst2011.de-en.en.xml"
    with refused(f"de-en.tgz: member {name} is missing"):
        read_iwslt14(archive(tmp_path / "de-en.tgz", {name: None}))


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("train.tags.de-en.en", "one\n", "de has 3 text lines, .*train.tags.de-en.en has 1"),
        ("train.tags.de-en.de", "", "train.tags.de-en.de: empty"),
        ("IWSLT14.TED.tst2010.de-en.de.xml", "<doc>\n", "has 0 text lines, .* has 1"),
    ],
)
def test_uneven_members_are_named(name: str, text: str, says: str, tmp_path: Path) -> None:
    with refused(says):
        read_iwslt14(archive(tmp_path / "de-en.tgz", {f"de-en/{name}": text}))


# ---------------------------------------------------------------- text files


def write(folder: Path, **files: str | bytes) -> None:
    for name, content in files.items():
        data = content.encode() if isinstance(content, str) else content
        (folder / name.replace("_", ".")).write_bytes(data)


def test_two_text_files(tmp_path: Path) -> None:
    write(tmp_path, a_de="\ufeffeins \r\nzwei\r\n\r\n", a_en=" one\ntwo\nthree")
    corpus = read_files(str(tmp_path / "a"), ("de", "en"))
    assert corpus.train == [("eins", "one"), ("zwei", "two"), ("", "three")]
    assert corpus.valid == corpus.test == []


def test_own_validation_and_test_files_in_other_languages(tmp_path: Path) -> None:
    write(tmp_path, a_fr="un", a_en="one", b_fr="deux", b_en="two", c_fr="trois", c_en="three")
    stems = [str(tmp_path / name) for name in "abc"]
    corpus = read_files(stems[0], ("fr", "en"), *stems[1:])
    assert (corpus.train, corpus.valid, corpus.test) == (
        *([("un", "one")], [("deux", "two")]),
        [("trois", "three")],
    )


def test_a_packed_file_is_found_beside_a_plain_one(tmp_path: Path) -> None:
    write(tmp_path, a_de="eins", a_en_gz=gzip.compress(b"one"), b_de="x", b_de_gz=b"x")
    assert read_files(str(tmp_path / "a"), ("de", "en")).train == [("eins", "one")]
    assert beside(str(tmp_path / "b"), "de").name == "b.de"


def test_uneven_files_are_named_with_both_counts(tmp_path: Path) -> None:
    write(tmp_path, a_de="1\n2\n3\n", a_en="1\n2")
    with refused(r"a\.de has 3 lines, .*a\.en has 2"):
        read_files(str(tmp_path / "a"), ("de", "en"))


@pytest.mark.parametrize(
    ("english", "says"),
    [
        (b"", r"a\.en: empty"),
        (b"good\n\xff\n", r"a\.en, line 2: not UTF-8"),
        (None, r"a\.en: cannot be read"),
    ],
)
def test_a_bad_side_is_named(english: bytes | None, says: str, tmp_path: Path) -> None:
    write(tmp_path, a_de="1\n2\n")
    if english is not None:
        write(tmp_path, a_en=english)
    with refused(says):
        read_pairs(tmp_path / "a.de", tmp_path / "a.en")


def test_multi30k_takes_its_official_splits(tmp_path: Path) -> None:
    files = {}
    for stem in MULTI30K.values():
        for language in ("de", "en"):
            name = f"{stem}.{language}.gz"
            files[name] = tmp_path / name
            files[name].write_bytes(gzip.compress(f"{stem} {language}\n".encode()))
    corpus = read_multi30k(files)
    assert corpus.train == [("train de", "train en")]
    assert corpus.valid == [("val de", "val en")]
    assert corpus.test == [("test_2016_flickr de", "test_2016_flickr en")]


# ---------------------------------------------------------------- Home Assistant


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("Press the button. Then wait!", ["Press the button.", "Then wait!"]),
        ("Is it on? Yes.\nNext line", ["Is it on?", "Yes.", "Next line"]),
        ("Version 2.0 of e.g. this", ["Version 2.0 of e.g. this"]),
        ("Read the [docs](https://x.y/z) <b>now</b>.", ["Read the docs now ."]),
        ("**Note**: use `this`\n- first\n2. second", ["Note: use this", "first", "second"]),
        ("", []),
    ],
)
def test_markup_goes_and_sentences_part(text: str, sentences: list[str]) -> None:
    assert homeassistant.sentences(text) == sentences


GERMAN, ENGLISH = "Das Gerät ist schon da.", "The device is already here."


@pytest.mark.parametrize(
    ("german", "english", "fit"),
    [
        (GERMAN, ENGLISH, True),
        ("Gerät ist da.", ENGLISH, False),  # three words
        (GERMAN, "The " + "very " * 10 + "new device is here.", False),  # more than twice as long
        ("das " * 100, "the " * 100, True),
        ("das " * 101, "the " * 101, False),
        ("Das Gerät {name} ist da.", ENGLISH, False),
        (GERMAN, "The device is at %s now.", False),
        (GERMAN, "See https://x.y for the device here", False),
        (GERMAN, "Write the mail to me@home.org please now", False),
        ("Das Gerät 12:34:56:78:90 ist da.", ENGLISH, False),  # too few letters
        ("The device is already here.", ENGLISH, False),  # not translated
        (GERMAN, "Das Gerät bleibt schon hier.", False),
    ],
)
def test_which_interface_strings_are_used(german: str, english: str, fit: bool) -> None:
    assert homeassistant.usable(german, english) is fit


def wheel(path: Path, components: dict[str, tuple[object, object]]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, (german, english) in components.items():
            folder = f"homeassistant/components/{name}/translations"
            archive.writestr(f"{folder}/de.json", json.dumps(german))
            archive.writestr(f"{folder}/en.json", json.dumps(english))
            archive.writestr(f"{folder}/fr.json", "ignored, no JSON")
    return path


def named(split: str, skip: int = 0) -> str:
    """A component name that falls into `split`."""
    names = (f"component{n}" for n in range(1000))
    return [name for name in names if homeassistant.part_of(name) == split][skip]


def test_strings_are_joined_by_key_and_split_by_component(tmp_path: Path) -> None:
    strings = (
        {"step": {"a": GERMAN, "b": "Nur hier ist das da."}, "n": 3, "x": f"{GERMAN} Ja."},
        {"step": {"a": ENGLISH, "c": "Only this is in here."}, "n": 3, "x": ENGLISH},
    )
    parts = {
        part: ({"k": f"Das ist der Teil {part}."}, {"k": f"This is the {part} part."})
        for part in ("train", "valid", "test")
    }
    components = {named(part): texts for part, texts in parts.items()}
    pairs = read_embedded(wheel(tmp_path / "h.whl", components | {named("train", 1): strings}))
    assert pairs.train == [
        ("Das ist der Teil train.", "This is the train part."),
        (GERMAN, ENGLISH),  # x has two sentences on one side only
    ]
    assert pairs.valid == [("Das ist der Teil valid.", "This is the valid part.")]
    assert pairs.test == [("Das ist der Teil test.", "This is the test part.")]


def test_the_same_english_twice_is_used_once(tmp_path: Path) -> None:
    again = ({"k": "Dies ist schon das Gerät."}, {"k": ENGLISH.upper()})
    components = {"a": ({"k": GERMAN}, {"k": ENGLISH}), "b": again}
    parts = homeassistant.read_wheel(wheel(tmp_path / "h.whl", components))
    assert [pair for pairs in parts.values() for pair in pairs] == [(GERMAN, ENGLISH)]


def test_a_share_of_the_components_is_held_out() -> None:
    parts = [homeassistant.part_of(f"component{n}") for n in range(3200)]
    for part in ("valid", "test"):
        assert abs(parts.count(part) - 200) < 4 * (200 * 15 / 16) ** 0.5  # 4 standard deviations


def test_another_wheel_is_refused(tmp_path: Path) -> None:
    with refused("h.whl: no German-English strings"):
        read_embedded(wheel(tmp_path / "h.whl", {}))
    path = tmp_path / "broken.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("homeassistant/components/a/translations/de.json", "{")
    with refused("a/translations/de.json is not JSON"):
        read_embedded(path)
