"""What a model says, told apart: reasoning, content and calls of tools. Text in, free of I/O.

Reading order: `tools` (what may be called), `delta` (what comes out), `json_scanner` (where a JSON value
ends), `call_reader` (one call), `markers` (marks in a text), `call_parser` (what the formats share),
`call_rules` (the same of their grammars), `hermes`, `llama3`, `mistral` (the formats), `reasoning` (thoughts
before the answer), `answer_parser` (all of it), `formats` (which model speaks which), `answer_grammar` (all
of it as a constraint), `speech`.
"""
