"""Text to tokens and back, and the client side of a request's life.

Reading order: `entry`, `settings`, `service` (the process); `text` (tokenising, templates, detokenising);
`parsing` (what a model says, told apart); `models` (what can be served); `requests` (attempts, frames,
moves); what every door uses: `plan` (what is asked for), `prompt_reader` (its prompts as tokens), `manner`
(how it is answered), `generation` (one call, from prompts to text), `choices`, `text_choice`, `token_choice`
(its sequences), `traffic`, `choice_meter` (what is counted of them), `token_scores`, `shown_tokens`,
`shown_prompt` (what is told of tokens), `form`, `events` (what an answer looks like), `answer`, `request_id`
(its way to a client); `openai` (the JSON of OpenAI's API); the doors: `http` (routes and server-sent events),
`kserve` (Triton's dialect), `side_door` (NATS).
"""
