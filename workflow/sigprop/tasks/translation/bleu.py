"""BLEU in the two forms that are reported for IWSLT'14, each with what makes it comparable.

Papineni et al. 2002: with clipped n-gram precisions p_n over the corpus, hypothesis length c and
reference length r,

    BLEU = 100 min(1, exp(1 - r/c)) (p_1 p_2 p_3 p_4)^(1/4) .

`sacrebleu` (Post 2018, arXiv 1804.08771) scores plain text with its own tokenization, so anyone can
reproduce it; `tokenized` is what papers on IWSLT'14 De-En customarily print: Moses tokens,
lower-cased, subwords joined, no smoothing. The two differ by about a point, never compare across.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Bleu:
    """A corpus score with its label and sacrebleu's signature.

    Attributes:
        label: what to print next to the number.
        score: 0 to 100.
        signature: tokenization, case, smoothing, references and version.
        precisions: of 1- to 4-grams, percent.
        hypothesis_length, reference_length: tokens.
    """

    label: str
    score: float
    signature: str
    precisions: tuple[float, ...]
    hypothesis_length: int
    reference_length: int


def _score(
    hypotheses: Sequence[str],
    references: Sequence[str],
    label: str,
    *,
    lowercase: bool,
    tokenize: str,
    smooth: str,
) -> Bleu:
    from sacrebleu.metrics.bleu import BLEU

    if len(hypotheses) != len(references) or not references:
        raise ValueError(
            f"hypotheses and references must be equally many and at least one, got "
            f"{len(hypotheses)} and {len(references)}"
        )
    # force: no warning that the text looks tokenized, where it is so on purpose.
    metric = BLEU(
        lowercase=lowercase, tokenize=tokenize, smooth_method=smooth, force=tokenize == "none"
    )
    found = metric.corpus_score(list(hypotheses), [list(references)])
    return Bleu(
        label=label,
        score=float(found.score),
        signature=str(metric.get_signature()),
        precisions=tuple(found.precisions),
        hypothesis_length=int(found.sys_len),
        reference_length=int(found.ref_len),
    )


def sacrebleu(hypotheses: Sequence[str], references: Sequence[str], *, lowercase: bool) -> Bleu:
    """sacrebleu of detokenized text against the raw references (tokenizer 13a, smoothing exp).

    `lowercase` must be true when the model was trained on lower-cased text; the signature says so.

    Raises ValueError: different numbers of sentences, or none.
    """
    case = "lower-cased" if lowercase else "cased"
    label = f"sacreBLEU ({case})"
    return _score(hypotheses, references, label, lowercase=lowercase, tokenize="13a", smooth="exp")


def tokenized(hypotheses: Sequence[str], references: Sequence[str]) -> Bleu:
    """Tokenized, lower-cased BLEU, as the community reports for IWSLT'14 De-En.

    Both are lines of Moses tokens with subwords joined. Without smoothing: 0 when no 4-gram
    matches, as in Moses' multi-bleu.perl.

    Raises ValueError: different numbers of sentences, or none.
    """
    label = "tokenized BLEU (lower-cased)"
    return _score(hypotheses, references, label, lowercase=True, tokenize="none", smooth="none")
