"""OpenAI's JSON, in and out, free of HTTP: any front door speaks it.

Reading order: `fields` (which are refused by name), `constraints` (those that say what an answer must be),
`tool_fields` (those that offer tools); requests: `bodies`, `chat_body`, `completion_body`; what they ask:
`plans`, `chat_plan`, `completion_plan`; responses: `forms`, `chat_form`, `completion_form`, `logprobs`,
`model_list`; what they look like: `answers`. `calls` puts requests and responses together. `tokenizing`,
`token_answers` are about tokens alone.
"""
