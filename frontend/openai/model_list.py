"""Models as OpenAI's JSON."""

from collections.abc import Sequence

import msgspec

from proto.cards import ModelCard


class ModelObject(msgspec.Struct, frozen=True):
    """Units: `context_tokens` counts prompt and answer together; `created` in seconds of the epoch. Token ids
    are 0 to `vocab_size` - 1: who sends ids must know.
    """

    id: str
    created: int
    context_tokens: int
    vocab_size: int
    object: str = "model"
    owned_by: str = "kvmesh"


class ModelListObject(msgspec.Struct, frozen=True):
    data: list[ModelObject]
    object: str = "list"


def model_json(card: ModelCard) -> bytes:
    return msgspec.json.encode(_object(card))


def list_json(cards: Sequence[ModelCard]) -> bytes:
    return msgspec.json.encode(ModelListObject([_object(card) for card in cards]))


def _object(card: ModelCard) -> ModelObject:
    return ModelObject(card.name, card.created_s, card.context_tokens, card.vocab_size)
