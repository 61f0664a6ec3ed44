"""The transformer, as one decoder told by its config.

Reading order: `config` (what a model folder says), `weights` (how its tensors are read and checked), `rope`
(positions), `batch` (what one forward computes), `attention` (reads the paged pool), `decoder` (the whole).
"""
