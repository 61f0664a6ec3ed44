"""The block hash: its values are fixed for ever, and it names tokens, place and salt."""

from hashlib import blake2b

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proto.blockhash import HASH_BYTES, block_hashes, block_salt, iter_block_hashes
from proto.tokens import TOKEN_BYTES, pack_tokens

SALT = block_salt("sha256:abc")
tokens_lists = st.lists(st.integers(0, (1 << 32) - 1), max_size=40)
block_sizes = st.integers(1, 9)


def test_salts_stay_what_they_are() -> None:
    assert SALT.hex() == "34513d75ba7b1a5f303a987ce94f4598a18ca90741cca8cffe0cacd6d328b820"
    assert (
        block_salt("sha256:abc", "tenant-1").hex()
        == "f94782b668e909c53e65134d1189023389e28056ca788c63d9018ef1ab729598"
    )


def test_hashes_stay_what_they_are() -> None:
    assert [found.hex() for found in block_hashes(pack_tokens(range(1, 13)), 4, SALT)] == [
        "150d16e1470b52135ae20416128abad7",
        "d4195f6540a094a23bddec6e63f1569c",
        "09835f718bf6a73c3d4c28f549478ed0",
    ]
    odd = pack_tokens([0, 1, (1 << 32) - 1, 65536])
    assert (
        block_hashes(odd, 4, block_salt("sha256:abc", "tenant-1"))[0].hex()
        == "d525817bd4cfb6d352a41df1fe980f30"
    )


@given(tokens_lists, block_sizes)
def test_a_hash_is_the_keyed_blake2b_of_the_hash_before_it_and_the_blocks_tokens(
    tokens: list[int], block_size: int
) -> None:
    expected: list[bytes] = []
    for start in range(0, len(tokens) - len(tokens) % block_size, block_size):
        block = b"".join(token.to_bytes(4, "little") for token in tokens[start : start + block_size])
        parent = expected[-1] if expected else b""
        expected.append(blake2b(parent + block, digest_size=HASH_BYTES, key=SALT).digest())
    assert block_hashes(pack_tokens(tokens), block_size, SALT) == expected


@given(tokens_lists, block_sizes)
def test_only_full_blocks_have_a_hash(tokens: list[int], block_size: int) -> None:
    hashes = block_hashes(pack_tokens(tokens), block_size, SALT)
    assert len(hashes) == len(tokens) // block_size
    full = pack_tokens(tokens[: len(hashes) * block_size])
    assert block_hashes(full, block_size, SALT) == hashes


@given(tokens_lists, block_sizes, st.data())
def test_a_prompt_hashed_in_slices_has_the_hashes_of_the_whole(
    tokens: list[int], block_size: int, data: st.DataObject
) -> None:
    packed = pack_tokens(tokens)
    whole = block_hashes(packed, block_size, SALT)
    cut = data.draw(st.integers(0, len(whole)))
    cut_bytes = cut * block_size * TOKEN_BYTES
    parent = whole[cut - 1] if cut else b""
    head = block_hashes(packed[:cut_bytes], block_size, SALT)
    tail = list(iter_block_hashes(packed[cut_bytes:], block_size, SALT, parent))
    assert head + tail == whole


@given(st.lists(st.integers(0, 9), min_size=1, max_size=24), block_sizes, st.data())
def test_one_other_token_changes_its_block_and_all_after_it_and_none_before(
    tokens: list[int], block_size: int, data: st.DataObject
) -> None:
    spot = data.draw(st.integers(0, len(tokens) - 1))
    others = [*tokens[:spot], tokens[spot] + 1, *tokens[spot + 1 :]]
    before = block_hashes(pack_tokens(tokens), block_size, SALT)
    after = block_hashes(pack_tokens(others), block_size, SALT)
    changed = [one != other for one, other in zip(before, after, strict=True)]
    assert changed == [block >= spot // block_size for block in range(len(before))]


def test_equal_blocks_at_two_places_have_two_hashes() -> None:
    hashes = block_hashes(pack_tokens([7] * 32), 4, SALT)
    assert len(set(hashes)) == len(hashes) == 8


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("model-a", ""), ("model-b", "")),
        (("model-a", "t1"), ("model-a", "t2")),
        (("model-a", ""), ("model-a", "t1")),
        (("model-at", "1"), ("model-a", "t1")),
        (("a", ""), ("", "a")),
    ],
)
def test_two_models_or_tenants_share_no_hash(one: tuple[str, str], other: tuple[str, str]) -> None:
    packed = pack_tokens(range(64))
    ours = block_hashes(packed, 16, block_salt(*one))
    theirs = block_hashes(packed, 16, block_salt(*other))
    assert not set(ours) & set(theirs)
