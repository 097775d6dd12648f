"""Files as they come from outside: archives, compressed files, text. Nothing is ever unpacked to
disk: the wanted members are read into memory, and an archive with a suspicious member is refused.
"""

import gzip
import hashlib
import lzma
import posixpath
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

LARGEST = 2**30  # bytes of one member or file; the real ones are below 40 MB
PADDING = 2**24  # bytes after the last member of a tar archive; tar writes 10 kB


class CorpusError(ValueError):
    """Bad input data: the message is one line that names the file and the fix."""


def sha256(path: Path) -> str:
    """Hex digest of a file. Raises CorpusError when it cannot be read."""
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise CorpusError(f"{path}: cannot be read ({error.strerror}); check the path") from error


def check_sha256(path: Path, expected: str) -> None:
    """Raises CorpusError when the file at `path` does not have the hex digest `expected`."""
    found = sha256(path)
    if found != expected.lower():
        raise CorpusError(
            f"{path}: sha256 is {found}, expected {expected.lower()}; the file is damaged or "
            f"another version: fetch it again, or correct the checksum in the settings"
        )


def read_bytes(path: Path) -> bytes:
    """Content of a file; of what it holds when its name ends in `.gz`.

    Raises CorpusError: absent, unreadable, no gzip, truncated, or larger than `LARGEST`.
    """
    try:
        if path.suffix == ".gz":
            with gzip.open(path) as stream:
                data = stream.read(LARGEST + 1)
        else:
            with path.open("rb") as plain:
                data = plain.read(LARGEST + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise CorpusError(f"{path}: truncated or damaged gzip ({error}); fetch it again") from error
    except OSError as error:
        raise CorpusError(f"{path}: cannot be read ({error.strerror}); check the path") from error
    if len(data) > LARGEST:
        raise CorpusError(f"{path}: holds more than {LARGEST} bytes; give a smaller file")
    return data


def lines_of(data: bytes, where: object) -> list[str]:
    """The lines of UTF-8 text, without their ends (LF or CRLF) and without a byte order mark.

    Only LF ends a line. `str.splitlines` would also cut at U+0085 and U+2028, which occur inside
    sentences, and so shift one side of a parallel text against the other.

    Raises CorpusError: not UTF-8 (names the line), or no line at all.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise CorpusError(
            f"{where}, line {line}: not UTF-8 (byte 0x{data[error.start]:02x}); "
            f"convert it with `iconv -t utf-8`"
        ) from error
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    if not lines:
        raise CorpusError(f"{where}: empty; it must hold one sentence a line")
    return [line.removesuffix("\r") for line in lines]


def _checked_name(name: str, archive: Path) -> str:
    """`name` without `./`; CorpusError when it would lie outside the archive's folder."""
    parts = name.replace("\\", "/").split("/")
    if name.startswith(("/", "\\")) or ".." in parts or ":" in parts[0]:
        raise CorpusError(
            f"{archive}: member {name!r} lies outside the archive's folder; do not use this archive"
        )
    return posixpath.normpath(name)


def _read_on(archive: tarfile.TarFile, path: Path) -> None:
    """Read what follows the last member, which is padding. At its end gzip checks the sum and the
    length of the whole, so that a file without its tail, or with a changed byte, is noticed.
    """
    stream, rest = archive.fileobj, 0
    while stream is not None and (chunk := stream.read(2**20)):
        rest += len(chunk)
        if rest > PADDING:
            raise CorpusError(
                f"{path}: more than {PADDING} bytes follow its last member; do not use this archive"
            )


def read_tar(path: Path, wanted: Callable[[str], bool]) -> dict[str, bytes]:
    """The regular members of a tar archive (plain or compressed) whose name is `wanted`.

    Raises CorpusError: unreadable, truncated, damaged, a member outside its folder, a link or a
    device, a wanted member larger than `LARGEST`, or more than `PADDING` bytes behind the last.
    """
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                name = _checked_name(member.name, path)
                if not (member.isfile() or member.isdir()):
                    raise CorpusError(
                        f"{path}: member {name!r} is a link or a device; do not use this archive"
                    )
                if member.isfile() and wanted(name):
                    if member.size > LARGEST:
                        raise CorpusError(f"{path}: member {name!r} is larger than {LARGEST} bytes")
                    stream = archive.extractfile(member)
                    found[name] = stream.read() if stream is not None else b""
            _read_on(archive, path)
    except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile, tarfile.TarError) as error:
        reason = str(error).split("\n")[0].rstrip(":")  # tarfile lists all it tried
        raise CorpusError(
            f"{path}: truncated or not a tar archive ({reason}); fetch it again"
        ) from error
    except OSError as error:
        raise CorpusError(f"{path}: cannot be read ({error.strerror or error})") from error
    return found


def read_zip(path: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    """Name and content of the members of a zip archive (a wheel) whose name is `wanted`, sorted.

    Raises CorpusError: unreadable, truncated, a member outside its folder or too large.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = {_checked_name(info.filename, path): info for info in archive.infolist()}
            for name in sorted(filter(wanted, members)):
                if members[name].file_size > LARGEST:
                    raise CorpusError(f"{path}: member {name!r} is larger than {LARGEST} bytes")
                yield name, archive.read(members[name])
    except (EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile) as error:
        raise CorpusError(
            f"{path}: truncated or not a zip archive ({error}); fetch it again"
        ) from error
    except OSError as error:
        raise CorpusError(f"{path}: cannot be read ({error.strerror or error})") from error
