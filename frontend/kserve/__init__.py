"""KServe's v2 protocol over HTTP, as Triton speaks it: the same pipeline and limits as OpenAI's API.

Reading order: `tensors` (requests and answers as tensors), `plans` (what they ask for), `forms` (answers),
`metadata` (what a model takes and gives), `app` (routes and errors).
"""
