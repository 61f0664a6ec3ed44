"""Text to tokens and back, free of I/O.

Read in this order: `token_bytes` (what a token spells), `segments` (what of texts is kept), `tokenizer` (text
to tokens, token to bytes), `chat_messages`, `template_sandbox`, `chat_template` (messages to text),
`tokenize_pool` (both off the event loop, bounded), `detokenizer` (a stream's tokens to text), `stop_strings`
(where that text ends).
"""
