"""The side door: OpenAI's JSON over NATS, for any client of it.

Reading order: `endpoints` (what each subject does), `token_call`, `token_form` (those in tokens), `bus_reply`
(the messages of an answer), `lines` (a stream's events in messages), `door` (requests in, cancelled by whom
they are for), `door_rules` (its bounds).
"""
