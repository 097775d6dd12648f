"""Home Assistant's English and German interface strings as parallel text, read from its wheel.

The wheel holds `homeassistant/components/<component>/translations/{en,de}.json`, nested objects
whose leaves are strings; equal paths in the two files are translations of each other. They are
short, formulaic sentences of one domain: enough to train a small translation model anywhere a
package index is reachable, no benchmark. Licence of the strings: Apache-2.0.
"""

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sigprop.tasks.translation.archives import CorpusError, read_zip
from sigprop.tasks.translation.text import Pair

_MEMBER = re.compile(r"homeassistant/components/([^/]+)/translations/(en|de)\.json")

_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")  # Markdown: the text of a link stays
_TAG = re.compile(r"</?[A-Za-z][^>]*>")
_MARKS = re.compile(r"\*\*|__|`|^\s*(?:[-*#>]+|\d+\.)\s+", re.MULTILINE)
_SENTENCE_END = re.compile(r"(?<=[.!?:])\s+(?=[\"“„(]?[A-ZÄÖÜ])|\s*\n\s*")
_UNWANTED = re.compile(r"[{}<>\[\]\\|@]|%\w|\$\w|://|\bwww\.|_\w|&\w+;")
_WORD = re.compile(r"[^\W\d_]+")

# A line whose German side was left in English holds no German function word.
_ENGLISH = """
a an and are as at be been before by can cannot could do does for from has have how if in into is
it its may more must no not of on only or please should so than that the their them then there
these this to up was were when where which while will with without you your
"""
_GERMAN = """
aber alle allen als am an auch auf aus bei beim bis bitte da damit das dass dein deine deinem deinen
deiner dem den der des die dies diese diesem diesen dieser dieses du durch ein eine einem einen
einer eines er es für gegen hat haben ihr ihre im in ist kann keine keinen können mehr mit muss
müssen nach nicht noch nur ob oder ohne sein sich sie sind so soll sollen sollte über um und unter
vom von vor war was welche wenn werden wie wird wurde wurden zu zum zur zwischen
"""
_FUNCTION_WORDS = {"en": frozenset(_ENGLISH.split()), "de": frozenset(_GERMAN.split())}


def sentences(text: str) -> list[str]:
    """The sentences of one interface string, markup removed and white space collapsed."""
    text = _MARKS.sub("", _TAG.sub(" ", _LINK.sub(r"\1", text)))
    parts = (" ".join(part.split()) for part in _SENTENCE_END.split(text))
    return [part for part in parts if part]


def usable(german: str, english: str) -> bool:
    """Whether a pair of sentences is fit for training.

    4 to 100 words a side, word counts within a factor of 2, no placeholder, tag, address or
    variable name, at least 85 % letters and spaces, and a function word of its language on each
    side.
    """
    sides = {"de": german, "en": english}
    counts = [len(_WORD.findall(text)) for text in sides.values()]
    if min(counts) < 4 or max(counts) > 100 or max(counts) > 2 * min(counts):
        return False
    for language, text in sides.items():
        letters = sum(character.isalpha() or character.isspace() for character in text)
        if _UNWANTED.search(text) or letters < 0.85 * len(text):
            return False
        if not _FUNCTION_WORDS[language].intersection(_WORD.findall(text.lower())):
            return False
    return True


def _leaves(record: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    if isinstance(record, dict):
        for key, value in record.items():
            yield from _leaves(value, (*path, key))
    elif isinstance(record, str):
        yield path, record


def part_of(component: str) -> str:
    """Which split a component belongs to: 1 of 16 to `valid`, 1 of 16 to `test`, by its name.

    Whole components, because the strings of one component repeat each other almost word for word.
    """
    bucket = hashlib.sha256(component.encode()).digest()[0] % 16
    return {0: "valid", 1: "test"}.get(bucket, "train")


def read_wheel(path: Path) -> dict[str, list[Pair]]:
    """German-English pairs of the wheel at `path` by split: `train`, `valid`, `test`.

    A string counts when both sides have the same number of sentences; of pairs with the same
    English sentence, case aside, the first stays, in order of component name.

    Raises CorpusError: not a readable wheel, a translation file that is no JSON, or no pair.
    """
    files: dict[str, dict[str, dict[tuple[str, ...], str]]] = {}
    for name, data in read_zip(path, lambda name: _MEMBER.fullmatch(name) is not None):
        component, language = _MEMBER.sub(r"\1 \2", name).split()
        try:
            record = json.loads(data)
        except ValueError as error:
            raise CorpusError(f"{path}: {name} is not JSON ({error}); fetch it again") from error
        files.setdefault(component, {})[language] = dict(_leaves(record))
    pairs: dict[str, list[Pair]] = {"train": [], "valid": [], "test": []}
    seen: set[str] = set()
    for component in sorted(files):
        english, german = (files[component].get(language, {}) for language in ("en", "de"))
        for key, text in english.items():
            left, right = sentences(german.get(key, "")), sentences(text)
            if len(left) != len(right):
                continue
            for pair in zip(left, right, strict=True):
                if pair[1].lower() not in seen and usable(*pair):
                    seen.add(pair[1].lower())
                    pairs[part_of(component)].append(pair)
    if not seen:
        raise CorpusError(
            f"{path}: no German-English strings; give the wheel that envs/data.txt names"
        )
    return pairs
