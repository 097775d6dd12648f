"""Settings of the translation data. Imports no torch."""

import re
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from sigprop.experiments.settings import Block

Source = Literal["embedded", "iwslt14", "multi30k", "files"]
Language = Annotated[str, Field(pattern=r"^[a-z]{2,3}$")]
Text = Annotated[str, Field(min_length=1)]

# Of the files in commit a3d2e0d26b56 of the public repository multi30k/dataset.
MULTI30K_SHA256 = {
    "train.de.gz": "726e39b2fa9eb9ffb6dc763fb35a179f80fae06ffc5d28b6ace5faa883de28a6",
    "train.en.gz": "d79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f",
    "val.de.gz": "f0cba2f995189cf5770f29a8a9a537a3ad3f51657ad873405082ff6863a5e75a",
    "val.en.gz": "14f7d25ddd868909a9213e361768460edcacdd6ab9d1e77b92560dc10c10dc28",
    "test_2016_flickr.de.gz": "9204244e408ccb38d2a55cfcd344df15005fc42a07a6e55ca6c52b6ababb8cc8",
    "test_2016_flickr.en.gz": "611d361c6334bc7246101d48097c13cf5c4413c5befc793cc629934359d532d9",
}


class TranslationDataSettings(Block):
    """Which parallel text, and how it becomes numbers."""

    source: Source = Field(
        default="embedded",
        description="embedded: Home Assistant's interface strings (fetched by the set-up); "
        "iwslt14, multi30k: downloaded unless path is given; files: your own text",
    )
    path: Text | None = Field(
        default=None,
        description="iwslt14: de-en.tgz; multi30k: folder of its six .gz files; embedded: the "
        "wheel; files: the stem, so that STEM.de and STEM.en are the two sides",
    )
    valid_path: Text | None = Field(
        default=None, description="files: stem of validation text; null takes every 23rd pair"
    )
    test_path: Text | None = Field(
        default=None, description="files: stem of test text; null takes another every 23rd pair"
    )
    languages: Annotated[list[Language], Field(min_length=2, max_length=2)] = Field(
        default=["de", "en"], description="source and target language; others than de, en: files"
    )
    n_pairs: Annotated[int, Field(ge=100, le=10**9)] | None = Field(
        default=None, description="use only the first so many training pairs; null: all"
    )
    lowercase: bool = Field(default=True, description="lower-case everything")
    min_length: int = Field(default=1, ge=1, le=1000, description="fewest tokens of a side")
    max_length: int = Field(
        default=175, ge=1, le=10_000, description="most tokens of a side, before subwords"
    )
    max_ratio: float = Field(
        default=1.5, ge=1, le=1000, description="largest ratio of the two token counts"
    )
    bpe_size: int = Field(
        default=10_000, ge=1, le=200_000, description="byte-pair merges, learnt on both languages"
    )
    shared_vocabulary: bool = Field(
        default=False, description="true: one vocabulary for both languages, so they can share rows"
    )
    sha256: dict[str, Text] = Field(
        default=MULTI30K_SHA256,
        description="file name: hex digest that the file must have; others are only recorded",
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.source == "files":
            if self.path is None:
                raise ValueError("source=files needs path, the stem of your two text files")
            if self.languages[0] == self.languages[1]:
                raise ValueError(f"languages={self.languages} are equal; name source and target")
        else:
            for name in ("valid_path", "test_path"):
                if getattr(self, name) is not None:
                    raise ValueError(f"{name} is for source=files only; source is {self.source}")
            if self.languages != ["de", "en"]:
                raise ValueError(
                    f"languages={self.languages} need source=files; {self.source} has ['de', 'en']"
                )
        if self.max_length < self.min_length:
            raise ValueError(f"max_length={self.max_length} is below min_length={self.min_length}")
        for name, digest in self.sha256.items():
            if not re.fullmatch(r"[0-9a-fA-F]{64}", digest):
                raise ValueError(f"sha256 of {name} must be 64 hex digits, got {digest!r}")
        return self
