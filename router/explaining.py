"""A choice in words: the terms of every worker that was scored, as an operator asks for them."""

from proto.control import MAX_EXPLAINED, Explained, Verdict, WorkerTerms
from router.chooser import Chosen, Scores
from router.hashed_prompt import HashedPrompt


def explain(
    router: str, prompt: HashedPrompt, scores: Scores, chosen: Chosen | None, limit: int
) -> Explained:
    """The cheapest `limit` workers, and never more than a message holds."""
    cheapest = scores.terms.total_s.argsort(kind="stable")[: max(0, min(limit, MAX_EXPLAINED))]
    eligible, roomy = set(scores.eligible.tolist()), set(scores.roomy.tolist())

    def verdict(place: int) -> Verdict:
        if chosen is not None and scores.roster.workers[place] == chosen.worker:
            return "chosen"
        return "eligible" if place in roomy else "full" if place in eligible else "left out"

    return Explained(
        router=router,
        policy=scores.policy,
        worker=chosen.worker if chosen else "",
        num_workers=len(scores.roster.workers),
        num_tokens=prompt.num_tokens,
        workers=[_terms_of(scores, place, verdict(place)) for place in cheapest.tolist()],
    )


def _terms_of(scores: Scores, place: int, verdict: Verdict) -> WorkerTerms:
    terms = scores.terms
    return WorkerTerms(
        worker=scores.roster.workers[place],
        verdict=verdict,
        total_s=float(terms.total_s[place]),
        wait_s=float(terms.wait_s[place]),
        seat_s=float(terms.seat_s[place]),
        slowdown_s=float(terms.slowdown_s[place]),
        work_s=float(terms.work_s[place]),
        shortage_s=float(terms.shortage_s[place]),
        is_remote=bool(terms.is_remote[place]),
        hit_tokens=int(scores.candidates.hit_tokens[place]),
        load=float(scores.candidates.load[place]),
    )
