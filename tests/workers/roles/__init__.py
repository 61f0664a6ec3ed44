"""A prefill elsewhere, from both ends, without a bus: tables, proofs, and the lender over a real engine."""
