"""Why each claim is decided the way it is: its statistic, and the reason for its rule.

Words only, beside the rules themselves. `if_not` says what is known about a claim that did not
reproduce, or was not decided, in the settings of the laptop preset; it is shown with such a verdict
and decides nothing.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Reason:
    """What is measured with which interval, why the rule asks what it does, what if it fails."""

    statistic: str
    why: str
    if_not: str = ""


_EXACT = "largest value, exact: no interval"
_MEAN = "mean over networks with its 95 % bootstrap interval"
_Z = "mean over networks against an exact expectation, in standard errors (z-test)"
_RUNS = "mean of differences of runs of equal seed with its 95 % Student-t interval"

REASONS = {
    "N01": Reason(
        _EXACT,
        "Both compute the same numbers in float64, so that rounding alone may separate them; 1e-9 "
        "leaves room for sums over many entries and none for a wrong term.",
    ),
    "N02": Reason(
        _EXACT,
        "The theorem says exactly zero. 1e-20 of a squared norm lies above the square of rounding "
        "and far below any gradient that does not vanish identically.",
    ),
    "N03": Reason(
        _Z,
        "The expectation is exact at any size, so the only difference allowed is sampling noise. "
        "3.5 standard errors are exceeded by chance once in 2000 tests; a standard error of 1 % "
        "keeps a rule with few networks from passing. Four different sizes tell d from d_k and "
        "d_v.",
    ),
    "N04": Reason(
        _Z,
        "As N03. Equal tokens are the case in which the other gradients vanish and this one does "
        "not.",
    ),
    "N05": Reason(
        "mean over networks minus 3.5 standard errors, over the bound",
        "One counterexample refutes a bound, if it is certain: 3.5 standard errors make chance an "
        "unlikely explanation.",
    ),
    "N06": Reason(
        _Z,
        "As N03. That the formula without the factor is rejected on the same data shows that the "
        "test can tell the two apart.",
    ),
    "N07": Reason(
        "slope on logarithms with its 95 % bootstrap interval over networks",
        "Equivalence: the whole interval must lie near the power that theory gives. 0.06 and 0.03 "
        "are a fiftieth of the distance to the next whole power, and above what softmax bends the "
        "line at inputs this small.",
    ),
    "N08": Reason(
        "ln of the ratio of successive means with its 95 % bootstrap interval",
        "Monotone means that every step has the sign; a trend over the ends alone could hide a "
        "turn.",
    ),
    "N09": Reason(
        "geometric mean over cells of simulation / theory, and its worst cell",
        "The theory is exact for uniform attention and approximate for softmax. 4 % on average and "
        "15 % in the worst cell were set from a pilot that had 1 % and 11 %.",
        "The averages agree; one cell decides, values at d = 8, n = 64, rho = 0. There softmax is "
        "least uniform: it leans towards tokens that agree with the query, which raises the norm "
        "by n / d^3 + 1 / d^2 of itself to leading order (derived here), 14 % in this cell, 8 % at "
        "n = 32 and 2 % at d = 16. So near the bound of 15 % the verdict is that of the sampling "
        "error, 2 % with 400 networks, as the rule takes the worst cell without its interval. "
        "More networks would bring it below, wider ones far below.",
    ),
    "N10": Reason(
        "difference of |ln(simulation / theory)| with its 95 % bootstrap interval",
        "The claim is about order, so differences are tested, not values; the two ends must also "
        "lie far enough apart to matter: 5 % at the small input, e^0.5 at the large one.",
    ),
    "N11": Reason(
        _Z,
        "The lemmas are exact at any width for linear networks with uniform attention: only "
        "sampling noise is allowed, as in N03.",
    ),
    "N12": Reason(
        "ratio of two means over networks with its 95 % bootstrap interval",
        "Equivalence: a ratio of expectations has no simple standard error, and 0.01 is small "
        "against what separates the settings.",
    ),
    "N13": Reason(
        "ratio of two means over networks with its 95 % bootstrap interval",
        "At L = 200 the remaining terms are of order 1/L, well inside 0.02; the one-sided part "
        "asks for the side from which the limit is approached.",
    ),
    "N14": Reason(
        _MEAN,
        "The paper speaks of collapse within a dozen layers; 0.7 and 0.98 make it a number, and "
        "the lower end makes it certain. The start is 0.1.",
    ),
    "N15": Reason(
        _MEAN + "; range over depths, bootstrapped by depth",
        "Bounded means: near the limit of infinite depth at every depth, and no trend. 0.08 is "
        "above the finite-width bias of the limit and far below the way to collapse. A range of "
        "noisy means is biased upwards, so the rule is cautious.",
    ),
    "N16": Reason(
        _MEAN,
        "Equivalence. The map is exact at infinite width; at finite width the bias is of order 1/d "
        "for uniform attention and larger where softmax departs from it, hence two bounds.",
    ),
    "N17": Reason(
        "mean over networks of a slope, with its 95 % bootstrap interval",
        "Equivalence: halving is a slope of -1 on log2. 0.12 tells a factor 1/2 from 0.46 or 0.54, "
        "and layers 5 to 12 lie between the start and the precision of float32.",
    ),
    "N18": Reason(
        "slope of the map, no interval; ratio to the map, 95 % bootstrap interval",
        "The exponent belongs to the map, which can be followed to great depth; simulations only "
        "reach layer 48, so they are asked to follow the map, not to show the exponent.",
    ),
    "N19": Reason(
        "mean over networks of a slope of log10, with its 95 % bootstrap interval",
        "From layer 4 to 11 a slope of -0.4 loses a factor of 600, one inside ± 0.08 at most 4: "
        "vanishing and not vanishing are far apart. Earlier layers still feel the input.",
    ),
    "N20": Reason(
        "mean over networks of a slope of log10, with its 95 % bootstrap interval",
        "The claim is about the sign of a trend, so the interval must exclude zero, nothing more.",
    ),
    "N21": Reason(
        "ratio of means over networks with its 95 % bootstrap interval",
        "Equivalence. The lemma assumes uniform attention, which aligned tokens bring about; above "
        "a cosine of 0.95 the difference to softmax stays below 10 %.",
    ),
    "N22": Reason(
        "two-sample Kolmogorov-Smirnov distance, p-values adjusted by Holm over depths",
        "No difference cannot be shown by a large p alone, so the distance is bounded too. 600 "
        "networks resolve a distance of 0.1; at the larger input the difference must be beyond "
        "any doubt.",
    ),
    "N23": Reason(
        "variance over networks with its 95 % bootstrap interval",
        "Disjoint intervals are stricter than a test of each difference, and they make the growth "
        "visible in the figure.",
    ),
    "N24": Reason(
        _EXACT + "; ratio of means with its 95 % bootstrap interval",
        "With the same weights tau is a factor, exact up to rounding. For softmax tau* comes from "
        "a theory of uniform attention, so 15 % are allowed at these input sizes.",
    ),
    "N25": Reason(
        "ratio of means over networks with its 95 % bootstrap interval",
        "Equivalence. For uniform attention tau* is exact; 5 % is what 2000 networks resolve. The "
        "paper's rho is not known, so no value of tau is required.",
    ),
    "N26": Reason(
        "log-rank statistic of steps until solved; median loss with its 95 % bootstrap interval",
        "Runs that never learn have no time, so times are censored and ranked. Eight seeds can "
        "reach p < 0.01. 2.25 lies just below chance, ln 10 = 2.303.",
    ),
    "N27": Reason(
        "Spearman correlation with its 95 % bootstrap interval over seeds",
        "The paper shows a monotone relation, not a law; ranks ask for no more. Seeds are "
        "resampled whole, because the pairs of one seed belong together.",
    ),
    "N28": Reason(
        "share of seeds with a positive difference, exact two-sided sign test",
        "Only the sign is claimed, and nothing is known about the distribution over seeds. Eight "
        "of eight give p = 0.0078.",
    ),
    "N29": Reason(
        _MEAN,
        "Real sentences vary, so growth must exceed the intervals; without growth the spread stays "
        "a tenth of the range of a cosine. Thresholds were fixed without a pilot.",
    ),
    "N30": Reason(
        _RUNS,
        "At the paper's size its own differences set the bounds: 3 BLEU apart, within 1 of Adam "
        "(equivalence). A smaller model and text change BLEU itself, so there only the order of "
        "the validation losses is asked.",
    ),
    "N31": Reason(
        _RUNS,
        "The mean strength must rise at all; the correlation may rise, but by less than 0.15 on a "
        "scale that collapse would take to 1. Thresholds were fixed without a pilot.",
        "The correlation falls, as claimed; the mean strength falls too. In the 800 updates of the "
        "laptop preset most strengths drop in the first 50 and then grow slowly, while those of "
        "the decoder's feed-forward grow from the start. The paper trains a larger model for tens "
        "of thousands of updates; whether the mean then passes its start is not decided here.",
    ),
    "C01": Reason(
        _MEAN + ", at the layer of the largest deviation",
        "Equivalence at the worst layer implies it at all. 0.03 is above the finite-width bias at "
        "d = 1024 and below what the eye reads off a curve.",
    ),
    "C02": Reason(
        _MEAN + ", at the layer of the largest deviation",
        "As C01. In ordered settings all tokens share one vector, so its norm does not average "
        "over tokens and varies four times as much.",
    ),
    "C03": Reason(
        "growth rate over blocks with its 95 % bootstrap interval over networks",
        "Equivalence to the rate of theory, and a sign of its own, which is the claim.",
    ),
    "C04": Reason(
        "growth rate over blocks with its 95 % bootstrap interval over networks",
        "Two ways to be wrong: by an amount that matters, 0.03, or by a small one that is certain, "
        "3.5 standard errors.",
    ),
    "C05": Reason(
        "share of settings with the right sign, 95 % bootstrap interval over networks",
        "A phase is a sign. Settings within 0.03 of the transition are left out, where networks of "
        "this width cannot tell; 95 % leaves room for one in twenty.",
    ),
    "C06": Reason(
        "largest minus smallest rate, 95 % bootstrap interval over networks",
        "No dependence means: no more spread than C04 allows. A range of noisy rates is biased "
        "upwards, so the rule is cautious.",
    ),
    "C07": Reason(
        _MEAN,
        "A line has cosine 1 and a simplex equal cosines: both are asked for, from two starts, "
        "where 60 blocks are enough. A cosine in d dimensions varies by 1/sqrt(d) by itself.",
    ),
    "C08": Reason(
        _EXACT,
        "A continuous transition has its fixed point near 1 just beyond the edge and at 1 just "
        "before it; the least stable point is asked as well, to exclude a jump.",
    ),
    "C09": Reason(
        "growth rate over all blocks with its 95 % bootstrap interval over networks",
        "Equivalence. The looser bound of ordered settings has the reason of C02.",
    ),
    "C10": Reason(
        "growth rate over blocks with its 95 % bootstrap interval over networks",
        "As C04; gradients vary a little more than angles at the same number of networks.",
    ),
    "C11": Reason(
        _EXACT,
        "Identities between closed forms: 1e-10 and 1e-12 are rounding. Formulas and linearized "
        "maps were derived apart, so their agreement is a check.",
    ),
    "C12": Reason(
        _EXACT,
        "A statement about a maximum over a plane, evaluated on a fine grid; at alpha = 0 the "
        "exponent is 0 in every phase, hence the lower end of alpha.",
    ),
    "C13": Reason(
        _EXACT,
        "An expansion in alpha^2: at alpha = 0.1 the next term is of order 1 %, so 2 % tests the "
        "leading one.",
    ),
    "C14": Reason(
        "slope on logarithms, no interval",
        "A power of the depth is the slope; 0.02 tells -1/2 from any simple other power, and small "
        "depths, where the strength is near 1, are left out.",
    ),
    "C15": Reason(
        _Z,
        "The integrals are exact, so only sampling noise is allowed; 4 standard errors because "
        "dozens of means are compared. 10 % is an error that no one would call leading order.",
    ),
    "C16": Reason(
        "leave-one-out R^2 with its 95 % bootstrap interval over configurations; permutation test",
        "Predicting what was not fitted is what the paper claims. Half of the variance, and 0.2 "
        "above either exponent alone, so that both are needed; neighbours assume no form.",
        "48 configurations leave R^2 an interval of about ± 0.3, wider than its distance to either "
        "bound; hundreds would decide. Losses are not random in the exponents (the permutation "
        "test rejects that), but the plain strengths predict them as well (controls), so what the "
        "exponents add is open. Training amplifies rounding besides, and no interval counts that.",
    ),
    "C17": Reason(
        "R^2 on another design with its 95 % bootstrap interval over configurations",
        "If the exponents are what matters, the fit carries over to strengths that differ by "
        "branch; the same regression on the settings themselves is the rival to beat.",
        "As C16: the intervals of 48 configurations reach below the bounds.",
    ),
    "C18": Reason(
        "ratio of two medians with its 95 % bootstrap interval over configurations",
        "Small and large exponents must differ by a factor of five, and the best point must not "
        "lie outside the region; medians, as losses have two groups.",
        "Loss is small wherever both branches are weak, also where an exponent is not small, so "
        "one best point or a few good ones outside the region are enough to fail, and which of "
        "the small losses is smallest depends on rounding. The same comparison by strength alone "
        "stands beside it.",
    ),
    "C19": Reason(
        "ratio of two medians with its 95 % bootstrap interval over configurations",
        "One exponent is held near zero, so that a difference belongs to the other. Fewer than "
        "three configurations in a group say nothing.",
        "Losses have two groups, learnt and not, so one configuration that fails with both "
        "exponents small moves the bootstrap of a median of eight below the bound.",
    ),
    "C20": Reason(
        "largest over smallest of three crossings; no interval, one training each",
        "If L lambda_a decides, its value at failure is the same at every depth while alpha is "
        "not. A factor of 1.6 is about one step of the grid of alpha, as lambda_a goes with its "
        "square.",
        "The crossing at L = 32 is the one that strays. All depths train for the same 300 updates, "
        "so slower learning at depth is not separated from collapse, and near failure a training "
        "turns on its seed and on rounding.",
    ),
}
