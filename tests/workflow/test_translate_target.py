"""`snakemake translate`: a user's sentences in, a file of translations out; what it refuses."""

from pathlib import Path

import pytest

from sigprop.experiments.config import load

pytestmark = pytest.mark.slow

REQUEST = ("translate", "--config", "preset=smoke", "sentences=my.de")
SENTENCES = "Das Gerät ist schon da.\nDer Name des Sensors\n"


def refusal(tree, *config: str) -> str:
    """The one line with which a dry run ends."""
    done = tree.snakemake("translate", "-n", "--config", *config)
    said = (done.stdout + done.stderr).splitlines()
    (line,) = [line for line in said if line.startswith("sigprop: ")]
    assert done.returncode == 1 and "Traceback" not in done.stdout + done.stderr
    return line.removeprefix("sigprop: ")


@pytest.mark.parametrize(
    ("content", "config", "says"),
    [
        (None, [], "sentences: missing; name a file with one sentence a line"),
        (None, ["sentences=none.de"], "sentences: 'none.de': no such file"),
        (None, ["sentences=config"], "sentences: 'config': is a folder"),
        (None, ["sentences=5"], "sentences: 5 is not allowed; input should be a valid string"),
        (None, ["sentences={my}.de"], "sentences: '{my}.de' has braces, which Snakemake takes"),
        (b"", ["sentences=my.de"], "my.de: holds no sentence"),
        (b"gut\n\xff\n", ["sentences=my.de"], "my.de, line 2: not UTF-8"),
        (b"gut\n\ngut\n", ["sentences=my.de"], "my.de, line 2: is empty"),
        (b"gut\n", ["sentences=my.de", "table=fig01"], "table: 'fig01' is not a table of transl"),
        (b"gut\n", ["sentences=my.de", "table=moments"], "table: 'moments' is not a table of tra"),
        (
            *(b"gut\n", ["sentences=my.de", "table=translation_our"]),
            "did you mean 'translation_ours'?",
        ),
    ],
)
def test_bad_requests_are_one_line(
    clean, tmp_path: Path, content: bytes | None, config: list[str], says: str
) -> None:
    if content is not None:
        (tmp_path / "my.de").write_bytes(content)
        config = [each.replace("my.de", str(tmp_path / "my.de")) for each in config]
    assert says in refusal(clean, "preset=smoke", *config)


def test_a_method_that_the_preset_leaves_out(clean, tmp_path: Path) -> None:
    left_out = "translation_rezero"
    assert load("laptop").experiments[left_out].n_seeds == 0
    (tmp_path / "my.de").write_text(SENTENCES)
    line = refusal(clean, "preset=laptop", f"sentences={tmp_path / 'my.de'}", f"table={left_out}")
    assert f"the laptop preset leaves {left_out} out" in line


def test_a_table_that_is_not_there_is_trained_first(clean, tmp_path: Path) -> None:
    (tmp_path / "my.de").write_text(SENTENCES)
    request = ["--config", "preset=smoke", f"sentences={tmp_path / 'my.de'}"]
    jobs = clean.jobs("translate", *request, "table=translation_pre_ln_adam")
    assert "translate" in jobs and "simulate_translation_pre_ln_adam" in jobs
    assert not any("ours" in job for job in jobs)
    assert "simulate_translation_ours" in clean.jobs("translate", *request)  # the default


def test_all_translates_nothing(clean) -> None:
    assert "translate" not in clean.jobs()


@pytest.fixture(scope="module")
def translated(clean, tmp_path_factory: pytest.TempPathFactory):
    """A tree in which one file was translated, by a table trained for it. Not to be changed."""
    tree = clean.copy(tmp_path_factory.mktemp("translated") / "tree")
    (tree.root / "my.de").write_text(SENTENCES, encoding="utf-8")
    done = tree.snakemake(*REQUEST)
    assert done.returncode == 0, done.stdout + done.stderr
    return tree


def test_a_file_is_translated_once(translated) -> None:
    written = translated.root / "results/smoke/translations/my.de.txt"
    assert written.read_text(encoding="utf-8").count("\n") == 2
    assert translated.jobs(*REQUEST) == set()
    again = translated.jobs(*REQUEST, "table=translation_pre_ln_adam")  # another request
    assert "translate" in again and any("pre_ln_adam" in job for job in again)


def test_a_file_with_any_name(translated, tmp_path: Path) -> None:
    """A name without a suffix is not taken for a target, and the shell sees spaces quoted."""
    tree = translated.copy(tmp_path / "tree")
    for name in ("sentences", "my text (1).de"):
        (tree.root / name).write_text(SENTENCES, encoding="utf-8")
        done = tree.snakemake("translate", "--config", "preset=smoke", f"sentences={name}")
        assert done.returncode == 0, done.stdout + done.stderr
    made = {path.name for path in (tree.root / "results/smoke/translations").iterdir()}
    assert made == {"my.de.txt", "sentences.txt", "my_text__1_.de.txt"}


def test_the_target_gives_what_the_command_gives(translated, tmp_path: Path) -> None:
    table = "results/smoke/data/translation_ours.parquet"
    by_hand = translated.sigprop("translate", table, "my.de", "--output", str(tmp_path / "out"))
    assert by_hand.returncode == 0, by_hand.stderr
    written = translated.root / "results/smoke/translations/my.de.txt"
    assert (tmp_path / "out").read_bytes() == written.read_bytes()


def test_a_sentence_that_is_too_long_leaves_no_translation(translated, tmp_path: Path) -> None:
    tree = translated.copy(tmp_path / "tree")
    (tree.root / "my.de").write_text("gut\n" + "gut " * 200 + "\n")
    done = tree.snakemake(*REQUEST)
    assert done.returncode == 1
    assert "sigprop: sentence 2: has 200 tokens, must have 1 to 175" in done.stdout + done.stderr
    assert not list((tree.root / "results/smoke/translations").glob("*"))
