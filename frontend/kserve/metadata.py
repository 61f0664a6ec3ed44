"""What the protocol's clients ask of a server and of a model before they send anything."""

from importlib.metadata import version
from typing import Any

from frontend.kserve.forms import OUTPUTS, VERSION
from frontend.kserve.tensors import TEXT_INPUT
from proto.cards import ModelCard

SERVER = "kvmesh"
EXTENSIONS = ("binary_tensor_data", "generate", "model_configuration", "model_repository")
_CONFIG_TYPES = {"BYTES": "TYPE_STRING", "UINT32": "TYPE_UINT32"}


def server_metadata() -> dict[str, Any]:
    return {"name": SERVER, "version": version(SERVER), "extensions": EXTENSIONS}


def model_metadata(card: ModelCard) -> dict[str, Any]:
    """A tensor holds any number of prompts, each of which gets a text."""
    return {
        "name": card.name,
        "versions": [VERSION],
        "platform": SERVER,
        "inputs": [{"name": TEXT_INPUT, "datatype": "BYTES", "shape": [-1]}],
        "outputs": [{"name": name, "datatype": kind, "shape": [-1]} for name, kind in OUTPUTS.items()],
    }


def model_config(card: ModelCard) -> dict[str, Any]:
    """In the form of Triton's model configuration, as far as it means anything here."""
    return {
        "name": card.name,
        "platform": SERVER,
        "backend": SERVER,
        "max_batch_size": 0,
        "input": [{"name": TEXT_INPUT, "data_type": "TYPE_STRING", "dims": [-1]}],
        "output": [
            {"name": name, "data_type": _CONFIG_TYPES[kind], "dims": [-1]} for name, kind in OUTPUTS.items()
        ],
        "model_transaction_policy": {"decoupled": True},
        "parameters": {
            "context_tokens": {"string_value": str(card.context_tokens)},
            "vocab_size": {"string_value": str(card.vocab_size)},
        },
    }


def repository_index(cards: list[ModelCard]) -> list[dict[str, Any]]:
    return [{"name": card.name, "version": VERSION, "state": "READY", "reason": ""} for card in cards]
