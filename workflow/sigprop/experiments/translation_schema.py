"""Columns of the translation tables."""

import pandera.pandas as pa

from sigprop.artifacts.tables import tidy_schema

STRENGTHS = (
    "alpha_encoder_attention",
    "alpha_encoder_feed_forward",
    "alpha_decoder_attention",
    "alpha_decoder_cross_attention",
    "alpha_decoder_feed_forward",
)

# Losses are per target token; valid_loss has no label smoothing and no dropout. token_norm is the
# mean over real tokens of |x|. BLEU is that of the weights with the least valid_loss, whose step it
# has. learning_rate and tau are those of the update to come.
QUANTITIES = {
    "train_loss": "nat",
    "valid_loss": "nat",
    "learning_rate": "1",
    "tau": "1",
    "cos_mean": "1",
    "token_norm": "1",
    **dict.fromkeys(STRENGTHS, "1"),
    "sacrebleu": "percent",
    "bleu_tokenized": "percent",
    "diverged": "1",
}

# `step` counts updates made. `layer` is null where a value belongs to the whole network; cos_mean
# and token_norm have the encoder's layers 0 (its input) to L, strengths 0 to L - 1.
FACTORS = {
    "scheme": "str",
    "optimizer": "str",
    "tau_final": "float64",
    "alpha_rule": "str",
    "alpha_init": "float64",
    "d_model": "int64",
    "depth": "int64",
    "corpus": "str",
    "step": "int64",
    "layer": pa.Column("Int64", nullable=True),
}

SCHEMA = tidy_schema(FACTORS, QUANTITIES, name="translation")
