"""The transformer, as one decoder told by its config.

Reading order: `config` (what a model folder says; `config_file`, `rope_config` and `windows` are its parts),
`weights` (which tensors there must be, read from `shards` in one of the `dtypes`), `projection` and
`int8_projection` (a matrix, whole or in 8 bits), `rope` (positions), `batch` (what one forward computes),
`reach` (what of the KV its tokens see), `attention` (reads the paged pool), `decoder` (the whole).
"""
