"""OpenAI's API over HTTP.

Reading order: `app` (routes), `body_reader` (a bounded body), `replies` (whole answers and errors),
`answer_reply` (an answer on one connection, streamed or whole, until its client leaves).
"""
