"""The transformer, as one decoder told by its config.

Reading order: `config` (what a model folder says; `config_file`, `rope_config` and `windows` are its parts),
`weights` (how its tensors are read and checked), `rope` (positions), `batch` (what one forward computes),
`reach` (what of the KV its tokens see), `attention` (reads the paged pool), `decoder` (the whole).
"""
