"""OpenAI's API over HTTP.

Reading order: `app` (routes), `direct_posts` (those beneath FastAPI), `body_reader` (a bounded body),
`replies` (whole answers and errors), `error_border` (where errors become those), `answer_reply` (an answer on
one connection, streamed or whole, until its client leaves), `documentation` (what is said of the routes).
"""
