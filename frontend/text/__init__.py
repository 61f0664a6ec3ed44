"""Text to tokens and back, free of I/O but for a process.

Read in this order: `token_bytes` (what a token spells), `segments` (what of texts is kept), `tokenizer` (text
to tokens, token to bytes), `chat_messages`, `template_sandbox`, `chat_template` (messages to text),
`tokenize_child` and `tokenize_process` (long prompts elsewhere), `tokenize_pool` (all of it off the event
loop, bounded), `detokenizer` (a stream's tokens to text), `stop_strings` (where that text ends).
"""
