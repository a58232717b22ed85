"""The bound that a sample proves: the exact upper limit of Clopper and Pearson (Biometrika 26, 1934)."""

from __future__ import annotations

import math

CONFIDENCE = 0.95
_HALVINGS = 100


def upper_bound(wrong: int, drawn: int, *, population: int, confidence: float = CONFIDENCE) -> float:
    """Return the largest share of wrong rows in the table that is compatible with a sample, 0 to 1: the share
    at which `wrong` or fewer would be seen with probability 1 - confidence.

    Args:
        wrong: wrong rows in the sample, 0 up to `drawn`.
        drawn: rows in the sample.
        population: rows in the table; drawing without replacement only makes the true confidence higher.
        confidence: the probability that the bound holds, above 0 and below 1.
    """
    if population == 0:
        return 0.0
    if drawn >= population:
        return wrong / drawn
    if wrong >= drawn:  # also where none was drawn
        return 1.0
    risk = 1.0 - confidence
    # 1 - (1 - confidence)^(1/n), about 3/n at 95 % ("rule of three").
    if wrong == 0:
        return float(-math.expm1(math.log(risk) / drawn))
    low, high = wrong / drawn, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if _at_most(wrong, drawn, middle) > risk:
            low = middle
        else:
            high = middle
    return high


def as_percent(share: float) -> str:
    """Return a share in percent with two significant digits, rounded up: 0.000998 → `0.1 %`."""
    percent = share * 100
    if percent <= 0:
        return "0 %"
    digits = max(1 - math.floor(math.log10(percent)), 0)
    scale = 10**digits
    # The product may exceed a whole number by the last bit of a double; that must not be rounded up.
    rounded = min(math.ceil(percent * scale - 1e-9) / scale, 100.0)
    text = f"{rounded:.{digits}f}"
    return (text.rstrip("0").rstrip(".") if digits else text) + " %"


def _at_most(wrong: int, drawn: int, share: float) -> float:
    """Return the probability of at most `wrong` wrong rows among `drawn` when `share` of all are wrong."""
    if share >= 1.0:
        return 0.0
    log_share, log_rest = math.log(share), math.log1p(-share)
    whole = math.lgamma(drawn + 1)
    return math.fsum(
        math.exp(whole - math.lgamma(seen + 1) - math.lgamma(rest + 1) + seen * log_share + rest * log_rest)
        for seen, rest in ((seen, drawn - seen) for seen in range(wrong + 1))
    )
