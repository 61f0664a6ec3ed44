"""`kvmesh replay` and `kvmesh generate-trace`: traces of requests, played to servers and compared.

Reading order: `trace` (the format), `arrivals` and `generators` (traces that are made), `prompts` (token ids
for the blocks of a trace), `http_call`, `served_model` and `completion` (one request), `reading` (as its
client saw it), `player` (all of them, in time), `report` (the figures), `table` and `picture` (how they
look), `session` (a run over several servers), `replay_command` and `trace_commands` (the command line).
"""
