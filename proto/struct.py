"""The shape of every struct on the wire: frozen, typed, evolved by fields with defaults."""

import msgspec


class WireStruct(msgspec.Struct, frozen=True):
    """A value that crosses a process border, as a msgpack map.

    Unknown fields are ignored (a newer sender), missing ones take their default (an older sender), so a
    field may be added with a default and none may change its meaning.
    """


class PackedStruct(msgspec.Struct, frozen=True, array_like=True):
    """A `WireStruct` as a msgpack array, for what is sent thousands of times a second. New fields go last."""
