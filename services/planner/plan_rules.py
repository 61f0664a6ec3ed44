"""The thresholds of a plan."""

import msgspec

from services.planner.rate_match import Split


class PlanRules(msgspec.Struct, frozen=True):
    """Units: seconds; headroom and gain as ratios. `memory_s` is that of what is measured: its noise lasts
    about so long."""

    floor: Split
    short_below: float
    relief_above: float
    least_gain: float
    memory_s: float
    confirm_s: float
    min_stay_s: float
    cool_down_s: float
    pause_s: float
    retry_s: float
