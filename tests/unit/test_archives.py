"""Files from outside: what is refused, and the one line that says why."""

import gzip
import hashlib
import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from sigprop.tasks.translation import archives
from sigprop.tasks.translation.archives import (
    CorpusError,
    check_sha256,
    lines_of,
    read_bytes,
    read_tar,
    read_zip,
)


def refused(says: str) -> pytest.RaisesExc:
    """Expects a CorpusError whose message is one line that matches `says`."""
    return pytest.RaisesExc(CorpusError, match=says, check=lambda error: "\n" not in str(error))


def tar(path: Path, *members: tuple[str, bytes], links: tuple[tuple[str, str], ...] = ()) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
        for name, to in links:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, to
            archive.addfile(info)
    return path


# ---------------------------------------------------------------- tar and zip

OUTSIDE = ["../evil", "de-en/../../evil", "/etc/evil", "..\\evil", "C:/evil", "\\evil"]


@pytest.mark.parametrize("name", OUTSIDE)
def test_a_tar_member_outside_its_folder_is_refused(name: str, tmp_path: Path) -> None:
    archive = tar(tmp_path / "a.tgz", ("de-en/good", b"x"), (name, b"x"))
    with refused("lies outside the archive's folder"):
        read_tar(archive, lambda name: True)


@pytest.mark.parametrize("name", OUTSIDE)
def test_a_zip_member_outside_its_folder_is_refused(name: str, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.whl", "w") as archive:
        archive.writestr("good", "x")
        archive.writestr(name, "x")
    with refused("lies outside the archive's folder"):
        list(read_zip(tmp_path / "a.whl", lambda name: True))


def test_a_link_is_refused(tmp_path: Path) -> None:
    archive = tar(tmp_path / "a.tgz", links=(("de-en/train", "/etc/passwd"),))
    with refused("'de-en/train' is a link or a device"):
        read_tar(archive, lambda name: True)


def test_only_the_wanted_members_are_read_and_nothing_is_written(tmp_path: Path) -> None:
    archive = tar(tmp_path / "a.tgz", ("./de-en/a", b"1"), ("de-en/b", b"2"))
    assert read_tar(archive, {"de-en/a"}.__contains__) == {"de-en/a": b"1"}
    assert list(tmp_path.iterdir()) == [archive]


def test_a_member_that_would_fill_the_memory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "LARGEST", 10)
    archive = tar(tmp_path / "a.tgz", ("big", bytes(11)), ("small", bytes(10)))
    assert read_tar(archive, {"small"}.__contains__) == {"small": bytes(10)}
    with refused("'big' is larger than 10 bytes"):
        read_tar(archive, lambda name: True)
    with zipfile.ZipFile(tmp_path / "a.whl", "w") as wheel:
        wheel.writestr("big", bytes(11))
    with refused("'big' is larger than 10 bytes"):
        list(read_zip(tmp_path / "a.whl", lambda name: True))
    (tmp_path / "a.gz").write_bytes(gzip.compress(bytes(11)))
    with refused("holds more than 10 bytes"):
        read_bytes(tmp_path / "a.gz")


@pytest.mark.parametrize("cut", [50_000, 2_000, 9, 1])
def test_a_truncated_archive_is_refused(cut: int, tmp_path: Path) -> None:
    """The last 8 bytes are gzip's sum and length, which come after all members."""
    noise = hashlib.shake_256(b"seed").digest(50_000)
    archive = tar(tmp_path / "a.tgz", ("de-en/a", noise), ("de-en/b", noise))
    archive.write_bytes(archive.read_bytes()[:-cut])
    with refused("a.tgz: truncated or not a tar archive"):
        read_tar(archive, lambda name: True)


def test_an_archive_with_a_changed_byte_is_refused(tmp_path: Path) -> None:
    """Noise is stored as it is, so that only gzip's sum can tell."""
    noise = hashlib.shake_256(b"seed").digest(50_000)
    archive = tar(tmp_path / "a.tgz", ("de-en/a", noise))
    data = bytearray(archive.read_bytes())
    data[25_000] ^= 1
    archive.write_bytes(data)
    with refused("a.tgz: truncated or not a tar archive .*CRC"):
        read_tar(archive, lambda name: True)


@pytest.mark.parametrize("kind", ["bz2", "xz"])
def test_other_compressions_are_read_and_checked_too(kind: str, tmp_path: Path) -> None:
    noise = hashlib.shake_256(b"seed").digest(50_000)
    path = tmp_path / "a.tar"
    with tarfile.open(path, f"w:{kind}") as archive:  # type: ignore[call-overload]  # a mode made of parts
        info = tarfile.TarInfo("de-en/a")
        info.size = len(noise)
        archive.addfile(info, io.BytesIO(noise))
    assert read_tar(path, lambda name: True) == {"de-en/a": noise}
    data = bytearray(path.read_bytes())
    data[25_000] ^= 1
    path.write_bytes(data)
    with refused("a.tar: (truncated|cannot be read)"):
        read_tar(path, lambda name: True)


def test_what_follows_the_last_member_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "PADDING", 20_000)
    archive = tar(tmp_path / "a.tgz", ("de-en/a", b"x"))
    archive.write_bytes(gzip.compress(gzip.decompress(archive.read_bytes()) + bytes(30_000)))
    with refused("more than 20000 bytes follow its last member"):
        read_tar(archive, lambda name: True)


def test_a_damaged_zip_is_refused(tmp_path: Path) -> None:
    wheel = tmp_path / "a.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("a", "text " * 100)
    data = wheel.read_bytes()
    wheel.write_bytes(data[:-10])
    with refused("a.whl: truncated or not a zip archive"):
        list(read_zip(wheel, lambda name: True))
    wheel.write_bytes(data.replace(b"text text", b"text tEXt", 1))  # the CRC no longer fits
    with refused("a.whl: truncated or not a zip archive"):
        list(read_zip(wheel, lambda name: True))


@pytest.mark.parametrize("read", [read_tar, lambda *a: list(read_zip(*a))])
def test_other_files_and_absent_ones_are_refused(read, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("no archive")
    with refused("a: truncated or not a"):
        read(tmp_path / "a", lambda name: True)
    with refused("b: cannot be read"):
        read(tmp_path / "b", lambda name: True)


# ---------------------------------------------------------------- gzip, checksums


def test_gzip_goes_by_the_name(tmp_path: Path) -> None:
    (tmp_path / "a.gz").write_bytes(gzip.compress(b"x\n"))
    (tmp_path / "a.de").write_bytes(b"y\n")
    assert read_bytes(tmp_path / "a.gz") == b"x\n"
    assert read_bytes(tmp_path / "a.de") == b"y\n"


def test_a_bad_gzip_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "a.gz"
    whole = gzip.compress(hashlib.shake_256(b"seed").digest(5000))
    for data in (whole[:-20], b"not gzip", whole[:100] + bytes(50) + whole[150:]):
        path.write_bytes(data)
        with refused("a.gz: truncated or damaged gzip"):
            read_bytes(path)
    with refused("absent.gz: cannot be read"):
        read_bytes(tmp_path / "absent.gz")


def test_checksum(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"abc")
    right = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # FIPS 180-2
    check_sha256(path, right.upper())
    with refused(f"a: sha256 is {right}, expected 0000"):
        check_sha256(path, "0" * 64)
    with refused("b: cannot be read"):
        check_sha256(tmp_path / "b", right)


# ---------------------------------------------------------------- lines


def test_only_a_line_feed_ends_a_line() -> None:
    text = "one\u2028still one\ntwo\u0085still\x0btwo\x1cx\r\n\nfour"
    assert lines_of(text.encode(), "f") == [
        "one\u2028still one",
        "two\u0085still\x0btwo\x1cx",
        "",
        "four",
    ]


def test_a_byte_order_mark_goes_and_inner_marks_stay() -> None:
    assert lines_of("\ufeffone\n\ufefftwo\n".encode(), "f") == ["one", "\ufefftwo"]


def test_invalid_utf8_names_the_line() -> None:
    with refused("f, line 3: not UTF-8 .byte 0xfc."):
        lines_of("one\nzwei für\n".encode() + b"f\xfcr\n", "f")


def test_an_empty_file_is_refused() -> None:
    for data in (b"", "\ufeff".encode()):
        with refused("f: empty"):
            lines_of(data, "f")
