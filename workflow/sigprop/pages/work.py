"""How much work a block of settings is: operations, numbers held, rows of its tables.

Only ratios between sizes of the same table are used, so constants that do not depend on the sizes
are left out. n is tokens, d width, d_F hidden width, L depth.
"""

from functools import singledispatch
from typing import Any, NamedTuple

from sigprop.experiments.geometry.settings import GeometrySettings, NetworkBatch
from sigprop.experiments.gradients.settings import GradientSettings
from sigprop.experiments.jacobian.settings import ExactSettings, JacobianSettings
from sigprop.experiments.phases.settings import Axis, PhasesSettings, Plane
from sigprop.experiments.propagation.settings import EncoderCase, PropagationSettings
from sigprop.experiments.reversal.settings import ReversalSettings
from sigprop.experiments.softmax_rows.settings import SoftmaxRowsSettings
from sigprop.experiments.trainability.settings import TrainabilitySettings
from sigprop.experiments.translation.settings import TranslationInitSettings, TranslationSettings

METHOD = (
    "Operations are counted from the settings. Forward passes: networks × layers × n² (n + d_F) "
    "where weights are drawn in law, n (4 d² + 2 d d_F) + n² d where they are explicit. "
    "Gradients: three times that. Training: sequences seen, forward and backward, × layers × "
    "n (4 d² + 2 d d_F) + 2 n² d. Translation: tokens seen × (layers × (12 d² + 4 d d_F) + d × "
    "vocabulary). Attention Jacobians: networks × (n d² + n² d + d² d_k). Softmax rows: entries "
    "of the matrices × (settings + d_k). Phases: points × quantities, trajectories × depth. "
    "Theory: rows of the tables. Drawing and claims: between no growth and growth with the rows. "
    "Memory: rows of the table, the activations of networks that are differentiated together, and "
    "weights with their optimizer's state."
)

_PASSES = 3  # a forward and a backward pass cost three forward passes


class Work(NamedTuple):
    """Size of a block of settings in arbitrary units: only ratios of the same table are used."""

    operations: float
    numbers: float
    rows: float


@singledispatch
def work(settings: Any) -> Work | None:
    """How much work a block of settings is; None when nothing says so. Register new settings."""
    return None


@work.register
def _forward(settings: PropagationSettings) -> Work:
    operations = rows = 0.0
    for case in settings.cases():
        operations += case.n_networks * case.depth * _per_layer(case)
        rows += case.n_networks * len(settings.layers(case.depth)) * len(settings.quantities)
    return Work(operations, rows, rows)


def _per_layer(case: EncoderCase) -> float:
    in_law = case.sampler == "law" or (
        case.sampler == "auto"
        and case.weights == "gaussian"
        and _narrow(case.n_tokens, case.d_model)
    )
    return _layer(case.n_tokens, case.d_model, case.d_ff, in_law, case.activation)


def _narrow(n: int, d: int) -> bool:
    """The limit below which `sampler: auto` draws in law."""
    return n < 0.4 * d


def _layer(n: int, d: int, d_ff: int, in_law: bool, activation: str) -> float:
    if in_law:
        return float(n**2 * (n + (n if activation == "linear" else d_ff)))
    return n * (4.0 * d**2 + 2.0 * d * d_ff) + n**2 * d


@work.register
def _gradients(settings: GradientSettings) -> Work:
    operations = rows = held = 0.0
    for case in settings.cases():
        operations += _PASSES * case.n_networks * case.depth * _per_layer(case)
        rows += case.n_networks * (case.depth + 1) * len(settings.quantities)
        held = max(held, float(case.n_networks * case.n_tokens * case.d_model * case.depth))
    return Work(operations, rows + held, rows)


@work.register
def _jacobian(settings: JacobianSettings) -> Work:
    operations = rows = 0.0
    for case in settings.cells():
        n, d = case.n_tokens, case.d_model
        operations += case.n_networks * (n * d**2 + n**2 * d + d**2 * case.d_k)
        rows += case.n_networks * len(case.families)
    return Work(operations, rows, rows)


@work.register
def _exact(settings: ExactSettings) -> Work:
    rows = settings.n_shapes + settings.n_draws
    return Work(settings.n_shapes * settings.largest**4 + settings.n_draws, rows, rows)


@work.register
def _geometry(settings: GeometrySettings) -> Work:
    operations = rows = 0.0
    for batch in settings.batches():
        networks = batch.n_networks * len(batch.points)
        per_layer = _geometry_layer(batch)
        operations += networks * batch.depth * per_layer
        for quantity in batch.quantities:
            n = batch.n_tokens
            items = {"token_norm": n, "pair_cosine": n * (n - 1) / 2}.get(quantity, 1)
            rows += networks * len(batch.layers) * items
    return Work(operations, rows, rows)


def _geometry_layer(batch: NetworkBatch) -> float:
    n, d = batch.n_tokens, batch.d_model
    passes = 1 if batch.readout == "none" else _PASSES
    if batch.shared_weights:
        # The weights are drawn anew for each network, and its points pass through them.
        return passes * (n * 6.0 * d**2 + n**2 * d) + 6.0 * d**2 / len(batch.points)
    in_law = batch.sampler == "law" or (batch.sampler == "auto" and _narrow(n, d))
    return passes * _layer(n, d, d, in_law, batch.activation)


@work.register
def _softmax_rows(settings: SoftmaxRowsSettings) -> Work:
    operations = rows = 0.0
    for case in settings.cases():
        entries = float(case.n_batches * case.batch_size * case.n_rows * case.n_tokens)
        operations += entries * (len(case.points) + case.d_k / 16)
        rows += case.n_batches * len(case.points)
    return Work(operations, rows, rows)


@work.register
def _phases(settings: PhasesSettings) -> Work:
    operations = rows = 0.0
    for plane in settings.planes.values():
        points = _plane_points(plane)
        for quantity in plane.quantities:
            operations += points * (plane.depth if quantity == "lambda_g_traj" else 1)
            rows += points
    for line in settings.lines.values():
        found = len(line.mode) * len(line.read_out) * _count(line.alpha)
        rows += 3 * found * (1 if line.sigma_w is None else len(line.sigma_w))
    for trainable in settings.trainable.values():
        rows += len(trainable.mode) * len(trainable.depth) * len(trainable.sigma_w)
    for fixed in settings.fixed_points.values():
        count = len(fixed.mode) * len(fixed.alpha) * len(fixed.n_tokens)
        rows += 3 * count * _count(fixed.sigma_w)
    for edge in settings.edges.values():
        rows += 3 * len(edge.mode) * len(edge.alpha) * len(edge.lambda_a)
    for update in settings.maps.values():
        count = len(update.mode) * len(update.alpha) * len(update.sigma_w) * len(update.n_tokens)
        rows += 3 * count * update.n_points
    for scaling in settings.scaling.values():
        rows += 2 * len(scaling.k) * len(scaling.depth) * len(scaling.sigma_w)
    return Work(operations + rows, rows, rows)


def _plane_points(plane: Plane) -> float:
    strengths = _count(plane.alpha_attn)
    strengths *= 1 if plane.alpha_ff is None else _count(plane.alpha_ff)
    kinds = len(plane.variant) * len(plane.mode) * len(plane.activation) * len(plane.read_out)
    return float(kinds * strengths * _count(plane.sigma_w))


def _count(axis: Axis | list[float]) -> int:
    return axis.count if isinstance(axis, Axis) else len(axis)


@work.register
def _reversal(settings: ReversalSettings) -> Work:
    n, d = settings.n_tokens, settings.d_model
    training = settings.training
    looks = training.steps // settings.evaluate_every + 1
    sequences = _PASSES * training.steps * training.batch_size + looks * settings.test_sequences
    per_layer = n * (4.0 * d**2 + 2.0 * d * settings.d_ff) + 2.0 * n**2 * d
    operations = rows = 0.0
    for case in settings.cases():
        operations += settings.n_seeds * case.depth * sequences * per_layer
        rows += settings.n_seeds * (looks + case.depth * len(settings.probe_steps))
    held = settings.ensemble * training.batch_size * n * d * max(settings.depth)
    return Work(operations, rows + held, rows)


@work.register
def _trainability(settings: TrainabilitySettings) -> Work:
    n, d = settings.n_tokens, settings.d_model
    training = settings.training
    sequences = _PASSES * training.steps * training.batch_size + settings.test_sequences
    per_layer = n * 6.0 * d**2 + 2.0 * n**2 * d
    points = getattr(settings, settings.shape).size
    trained = settings.n_seeds * len(settings.mode) * points
    rows = 5.0 * trained * len(settings.depth)
    together = min(points, settings.ensemble)
    held = float(together * training.batch_size * n * d * max(settings.depth))
    return Work(trained * sum(settings.depth) * sequences * per_layer, rows + held, rows)


@work.register
def _translation(settings: TranslationSettings) -> Work:
    training = settings.training
    looks = training.steps // settings.evaluate_every + 1
    tokens = float(_PASSES * training.steps * training.batch_size)
    operations = rows = held = 0.0
    for case in settings.cases():
        weights = _translation_weights(settings, case.depth)
        operations += settings.n_seeds * tokens * weights
        rows += settings.n_seeds * (3 * looks + 8 * case.depth * len(settings.probe_steps))
        activations = case.depth * (14 * settings.d_model + 2 * settings.d_ff)
        vocabulary = settings.data.bpe_size
        held = max(held, 4 * weights + training.batch_size * float(activations + vocabulary))
    return Work(operations, rows + held, rows)


@work.register
def _translation_init(settings: TranslationInitSettings) -> Work:
    operations = rows = held = 0.0
    for case in settings.cases():
        d, d_ff = settings.d_model, settings.d_ff
        layer = 4.0 * d**2 + 2.0 * d * d_ff
        operations += settings.n_seeds * settings.probe_sentences * case.depth * layer
        rows += 2 * settings.n_seeds * (case.depth + 1)
        held = max(held, _translation_weights(settings, case.depth))
    return Work(operations, rows + held, rows)


def _translation_weights(
    settings: TranslationSettings | TranslationInitSettings, depth: int
) -> float:
    """Weights of encoder and decoder, which has a cross-attention, and of the embeddings."""
    d, d_ff = settings.d_model, settings.d_ff
    return depth * (12.0 * d**2 + 4.0 * d * d_ff) + 2.0 * d * settings.data.bpe_size
