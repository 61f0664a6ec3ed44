"""All that a decision rests on, as the fields of one line of the log."""

from services.planner.picture import Move, Picture
from services.planner.planning import Decision
from services.planner.rate_match import Headroom, Match, Split

Terms = dict[str, str | int | float]


def explain(move: Move, decision: Decision, picture: Picture, best: Split | None) -> Terms:
    """The load, what a worker can do, the split that is and the best one, and the threshold that was passed.

    Units: as in the structs; `threshold` as a ratio of headroom.
    """
    terms: Terms = {
        "worker": move.worker,
        "to": move.to,
        "num_prefill": picture.split.prefill,
        "num_decode": picture.split.decode,
        "ttft_s": picture.ttft_s,
        "itl_s": picture.itl_s,
        "noise": round(picture.noise, 3),
        "threshold": decision.threshold,
    }
    if best is not None:
        terms |= {"best_prefill": best.prefill, "best_decode": best.decode}
    if picture.match is not None:
        terms |= _explain_match(picture.match)
    return terms | _explain_headroom("now", decision.now) | _explain_headroom("after", decision.after)


def _explain_match(match: Match) -> Terms:
    load, capability, limits = match.load, match.capability, match.limits
    return {
        "ttft_limit_s": limits.ttft_s,
        "itl_limit_s": limits.itl_s,
        "prompt_tokens_per_s": round(load.prompt_rate, 1),
        "output_tokens_per_s": round(load.output_rate, 1),
        "prefill_rate": round(capability.prefill_rate, 1),
        "step_base_s": round(capability.step.base_s, 6),
        "step_sequence_s": round(capability.step.sequence_s, 6),
        "most_sequences": round(capability.most_sequences, 1),
    }


def _explain_headroom(when: str, headroom: Headroom | None) -> Terms:
    if headroom is None:
        return {}
    return {
        f"headroom_prefill_{when}": round(headroom.prefill, 3),
        f"headroom_decode_{when}": round(headroom.decode, 3),
    }
