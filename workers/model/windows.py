"""Which layers see all of a sequence, and which its last tokens alone."""

from pathlib import Path

import msgspec

from workers.model.config_file import ConfigFile, refusal

_UNNAMED_WINDOW = 4096  # what a config means that has a window and does not say how wide
_FULL, _SLIDING = "full_attention", "sliding_attention"


def read_windows(
    folder: Path, file: ConfigFile, architecture: str, context_tokens: int
) -> tuple[int | None, ...]:
    """For each layer, how many tokens a token sees, itself among them; None: all before it.

    A window as wide as the context hides nothing, and is none.

    Raises:
        InvalidSetting: the config asks for attention that its family, or this decoder, does not have.
    """
    kinds = _kinds(folder, file, architecture)
    window = _window(file, architecture)
    if _SLIDING in kinds and window is None:
        raise refusal(folder, f"layer_types names {_SLIDING}, but no window is set")
    if window is not None and window >= context_tokens:
        window = None
    return tuple(window if kind == _SLIDING else None for kind in kinds)


def _kinds(folder: Path, file: ConfigFile, architecture: str) -> list[str]:
    kinds = file.layer_types or _implied_kinds(file, architecture)
    if len(kinds) != file.num_hidden_layers:
        raise refusal(folder, f"layer_types has {len(kinds)} entries for {file.num_hidden_layers} layers")
    for kind in kinds:
        if kind not in (_FULL, _SLIDING):
            raise refusal(folder, f"layers of type {kind!r} are not supported, only {_FULL} and {_SLIDING}")
    if architecture == "LlamaForCausalLM" and (file.use_sliding_window or _SLIDING in kinds):
        raise refusal(folder, f"a {architecture} with a sliding window is not supported")
    if architecture == "MistralForCausalLM" and kinds != _implied_kinds(file, architecture):
        raise refusal(folder, f"a {architecture} whose layers are of several types is not supported")
    return kinds


def _implied_kinds(file: ConfigFile, architecture: str) -> list[str]:
    """Of a config without `layer_types`. Qwen's windows begin with layer `max_window_layers`."""
    if _window(file, architecture) is None:
        num_full = file.num_hidden_layers
    else:
        num_full = 0 if architecture == "MistralForCausalLM" else file.max_window_layers
    return [_FULL if layer < num_full else _SLIDING for layer in range(file.num_hidden_layers)]


def _window(file: ConfigFile, architecture: str) -> int | None:
    """The one window of all layers that have one."""
    has_window = file.use_sliding_window and architecture in ("Qwen2ForCausalLM", "Qwen3ForCausalLM")
    if architecture != "MistralForCausalLM" and not has_window:
        return None
    window = file.sliding_window
    return _UNNAMED_WINDOW if isinstance(window, msgspec.UnsetType) else window
