"""Text to tokens and back, and the client side of a request's life.

Reading order: `settings`, `service` (the process); `text` (tokenising, templates, detokenising); `models`
(what can be served); `requests` (attempts, frames, moves); `generation` and `text_choice` (one call, from
prompts to text, free of HTTP); `openai` (the JSON of OpenAI's API, free of HTTP too); `http` (routes and
server-sent events).
"""
