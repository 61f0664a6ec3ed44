"""OpenAI's JSON, in and out, free of HTTP: any front door speaks it.

Reading order: `fields` (which fields are served), `constraints` (those that say what an answer must be),
`bodies` (requests), `plans` (what they ask for), `forms` (responses, streamed and whole), `logprobs`,
`model_list`.
"""
