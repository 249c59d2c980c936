"""Lower bounds on the step time, and on the latency of a query, each proven."""

from enplace.bounds.claims import claim_text, dated_note, is_outdated, note_with_claim, with_claim
from enplace.bounds.proofs import Proof, Proofs, rivals_of, step_bound_us, with_bound
from enplace.bounds.step_time import lower_bound_us

__all__ = [
    "Proof",
    "Proofs",
    "claim_text",
    "dated_note",
    "is_outdated",
    "lower_bound_us",
    "note_with_claim",
    "rivals_of",
    "step_bound_us",
    "with_bound",
    "with_claim",
]
