"""The transformer, as one decoder told by its config.

Reading order: `config` (what a model folder says; `config_file`, `rope_config` and `windows` are its parts),
`share` (which part of it is held), `weights` (which tensors there must be, read from `shards` in one of the
`dtypes`, to lie in `weight_memory`, which is of `huge_pages`), `projection`, `head_projection` and
`int8_projection` (a matrix: whole, the one of the logits, or in 8 bits, with a `row_product`), `norm`, `rope`
(positions), `batch` (the `chunk`s that one forward computes), `workspace` (where its layers put their
products), `reach` (what of the KV its tokens see), `pool_rows` (where that lies), `scattered_decodes` and
`gathered_decodes` (single tokens answered from there, or from a copy), `attention` (the whole step),
`decoder` (the whole).
"""
