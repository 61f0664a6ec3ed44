"""What an answer must be goes to the worker as data; what comes back is what OpenAI's client makes of it."""

from typing import Any

import pytest
import uvloop
from pydantic import BaseModel

from proto.constraints import Constraint
from proto.requests import GenerateRequest
from services.grammars.vocabulary import check_grammar
from tests.frontend.conftest import MODEL, Serve
from tests.frontend.scripted_mesh import Script


class Place(BaseModel):
    city: str
    size: int


def test_a_model_of_pydantic_comes_back_parsed(serve: Serve) -> None:
    asked: list[Constraint | None] = []

    async def body() -> None:
        def answer(request: GenerateRequest) -> list[int]:
            asked.append(request.constraint)
            text = served.tokenizer.encode('{"city": "Rome", "size": 3}', add_special_tokens=False)
            return [*text, 2]

        async with serve({"w0": Script(answer)}) as served:
            reply = await served.openai.chat.completions.parse(
                model=MODEL, messages=[{"role": "user", "content": "Where?"}], response_format=Place
            )
            assert reply.choices[0].message.parsed == Place(city="Rome", size=3)

    uvloop.run(body())
    (constraint,) = asked
    assert constraint is not None
    assert (constraint.kind, constraint.field) == ("json_schema", "response_format")
    check_grammar(constraint)


@pytest.mark.parametrize(
    ("fields", "constraint"),
    [
        ({"guided_choice": ["a", "b"]}, Constraint("choice", '["a","b"]', "guided_choice")),
        ({"response_format": {"type": "json_object"}}, Constraint("json_object", "", "response_format")),
        ({"response_format": {"type": "text"}}, None),
    ],
    ids=["choice", "object", "text"],
)
def test_every_prompt_of_a_completion_is_asked_for_under_the_same_constraint(
    serve: Serve, fields: dict[str, Any], constraint: Constraint | None
) -> None:
    async def body() -> None:
        async with serve({"w0": Script(lambda _: [50, 51, 2])}) as served:
            reply = await served.http.post(
                "/v1/completions", json={"model": MODEL, "prompt": ["x", "y"], "seed": 5, **fields}
            )
            assert reply.status_code == 200
            assert [request.constraint for request in served.mesh.routed] == [constraint, constraint]

    uvloop.run(body())
