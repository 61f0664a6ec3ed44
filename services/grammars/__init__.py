"""Structured output: a constraint becomes a grammar, and a grammar says which tokens may come next.

Read in this order: `source` (a constraint in the grammar library's terms), `vocabulary` (grammars over the
tokens of one model), `trial`, `trial_slot` and `trials` (a constraint is tried first where it hurts nobody).
"""
