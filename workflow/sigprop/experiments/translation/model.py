"""What training, initialization and decoding of translation models share: text, network, probes."""

import fcntl
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor

from sigprop.artifacts.errors import UserError
from sigprop.artifacts.seeds import seed_stream, torch_seed
from sigprop.experiments.translation import data as translation_data
from sigprop.experiments.translation.data import TranslationData
from sigprop.experiments.translation.settings import Network, TranslationCase, TranslationSettings
from sigprop.models.decoding import Search
from sigprop.models.seq2seq import Seq2Seq, Seq2SeqConfig
from sigprop.tasks.translation.batches import Batches, SentenceBatch, pad
from sigprop.tasks.translation.subwords import EOS, PAD


def prepared(settings: Network, cache: str | Path) -> TranslationData:
    """The text of `settings`, prepared in `cache` unless it is there.

    Jobs that start together do not prepare it twice: the others wait for the first.

    Raises UserError: see `translation_data.prepare`, and a sentence longer than `max_tokens`.
    """
    cache = Path(cache)
    try:
        cache.mkdir(parents=True, exist_ok=True)
        lock = (cache / ".lock").open("a")
    except OSError as error:
        raise UserError(
            f"{cache}: cannot write there ({error.strerror}); give a folder with write permission"
        ) from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # released with the file, also by a kill
        folder = translation_data.prepare(settings.data, cache)
    data = translation_data.load(folder)
    for split in translation_data.SPLITS:
        longest = int(getattr(data, split).lengths.max())
        if longest > settings.max_tokens:
            raise UserError(
                f"max_tokens={settings.max_tokens} is below {longest}, the longest sentence of the "
                f"{split} text in subwords; raise it"
            )
    return data


def config_of(settings: Network, data: TranslationData, depth: int) -> Seq2SeqConfig:
    """The shape of the network; without dropout where the settings know none."""
    source, target = (len(vocabulary) for vocabulary in data.vocabularies)
    config = Seq2SeqConfig(
        source,
        target,
        settings.d_model,
        depth,
        depth,
        n_heads=settings.n_heads,
        d_ff=settings.d_ff,
        max_tokens=settings.max_tokens,
        share=settings.share,
        pad=PAD,
    )
    if not isinstance(settings, TranslationSettings):
        return config
    return replace(
        config,
        dropout=settings.dropout,
        attention_dropout=settings.attention_dropout,
        heated=tuple(settings.heated),
    )


def run_seed(root: int, seed: int, purpose: str) -> int:
    """The seed of one stream. Methods share it: they start from the same draws on the same data."""
    return torch_seed(seed_stream(root, "translation", f"seed {seed}", purpose))


def build(
    settings: Network,
    data: TranslationData,
    case: TranslationCase,
    generator: Generator | None = None,
) -> Seq2Seq:
    """The network of a case; without a generator its weights are to be loaded."""
    own = generator or torch.Generator().manual_seed(0)
    return Seq2Seq(config_of(settings, data, case.depth), case.scheme, own)


def search_of(beam: int, length_penalty: float) -> Search:
    """The search; a target starts with the end mark, as in `tasks.batches`."""
    return Search(start=EOS, end=EOS, beam=beam, length_penalty=length_penalty)


class Endless:
    """Training batches without end, for the loop."""

    def __init__(self, batches: Batches, device: str) -> None:
        self._batches, self._device = batches, device
        self._forever: Iterator[SentenceBatch] = batches.forever()

    def next(self) -> SentenceBatch:
        return next(self._forever).to(self._device)

    def state_dict(self) -> dict[str, Any]:
        return self._batches.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._batches.load_state_dict(state)
        self._forever = self._batches.forever()


def probe_batch(data: TranslationData, n_sentences: int, device: str) -> tuple[Tensor, Tensor]:
    """Source of evenly spaced validation sentences, (B, n) int64, and its real tokens, (B, n) bool.

    Sentences have two tokens or more, because one has no pair.
    """
    long = np.flatnonzero(data.valid.source.lengths >= 2)
    if not len(long):
        raise UserError("probe_sentences: no validation sentence has two tokens; give more text")
    chosen = long[np.unique(np.linspace(0, len(long) - 1, n_sentences).astype(np.int64))]
    tokens, padding = pad(data.valid.source, chosen)
    return tokens.to(device), torch.logical_not(padding).to(device)


def token_statistics(states: Sequence[Tensor], real: Tensor) -> dict[str, Tensor]:
    """Correlation and size of the tokens of X^0, ..., X^L, (B, n, d), each (L + 1,) float64.

        cos_mean = mean over sentences and pairs k != k' of cos(X_k, X_k')
        token_norm = mean |X_k|

    over the tokens in `real`, (B, n). With unit vectors u_k of one sentence of m tokens the pairs
    sum to |sum_k u_k|^2 - m.
    """
    cosines, norms = [], []
    m = real.sum(1).double()  # (B,)
    for x in states:
        x = x.double()
        norm = x.norm(dim=-1)  # (B, n)
        u = x / norm.clamp_min(torch.finfo(torch.float64).tiny)[..., None]
        total = (u * real[..., None]).sum(1)  # (B, n, d) -> (B, d)
        cosines.append(((total.square().sum(-1) - m) / (m * (m - 1))).mean())
        norms.append(norm[real].mean())
    return {"cos_mean": torch.stack(cosines), "token_norm": torch.stack(norms)}


def strengths(network: Seq2Seq) -> dict[str, Tensor]:
    """alpha of every layer by stack and branch, (L,); the scheme's where it is not trained."""
    found = {}
    for name, stack in (("encoder", network.encoder), ("decoder", network.decoder)):
        for sublayer in stack.sublayers:
            fixed = torch.full((stack.depth,), sublayer.strength.at(stack.depth))
            own = fixed if stack.strengths is None else stack.strengths[sublayer.branch][0]
            found[f"alpha_{name}_{sublayer.branch}"] = own.detach()
    return found
