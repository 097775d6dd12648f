"""Seeds: every random stream is named, and all of them grow from the one seed of the config."""

import zlib

import numpy as np


def seed_stream(root: int, *names: str) -> np.random.SeedSequence:
    """The seed sequence of the stream called `names` under the config's `seed`.

    Named streams stay the same when other streams are added or removed, so adding a curve to
    an experiment leaves the other curves as they were.
    """
    return np.random.SeedSequence(
        root, spawn_key=tuple(zlib.crc32(name.encode()) for name in names)
    )


def torch_seed(sequence: np.random.SeedSequence) -> int:
    """A 63-bit integer for `torch.Generator.manual_seed`."""
    return int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1))
