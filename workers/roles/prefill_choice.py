"""Where a prompt is prefilled: here, or by a prefill worker."""

from typing import Literal

PrefillMode = Literal["predicted", "threshold"]
"""By predicted time, or elsewhere whenever it is long enough and can go there."""


def is_sooner_there(mode: PrefillMode, num_tokens: int, rate_here: float, wait_there_s: float) -> bool:
    """Whether `num_tokens` uncached tokens are to be prefilled elsewhere, once that can be.

    Units: `rate_here` tokens a second, 0 until measured; `wait_there_s` seconds before its compute there.
    """
    return mode == "threshold" or not rate_here or wait_there_s <= num_tokens / rate_here
