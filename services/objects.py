"""The object store: files named by their digest, such as a tokenizer's, put once and read with a deadline.

In NATS's own layout, so that its tools read it: chunks on one subject, then a description that makes the
object visible. The description is written only if no other is there, so an object never changes under a
reader; a writer that was second takes its chunks away again.

Source: NATS ADR-20.
"""

import asyncio
import base64
import hashlib
from contextlib import suppress
from typing import Annotated

import msgspec
from msgspec import Meta

from proto.errors import DeadlineExceeded, Disconnected, InvalidRequest, NoResponder, Overloaded
from proto.names import new_id
from services.bus import Bus, Delivery
from services.jetstream import (
    SEQUENCE_HEADER,
    Storage,
    StreamConfig,
    ensure_stream,
    find_last,
    find_next,
    purge,
    put_message,
)

CHUNK_BYTES = 128 * 1024


class ObjectSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    storage: Annotated[Storage, Meta(description="Where objects are kept: file or memory")] = "file"
    num_replicas: Annotated[
        int, Meta(ge=1, le=5, description="Servers of the cluster that hold an object")
    ] = 1
    max_bytes: Annotated[int, Meta(gt=0, description="Bytes of all objects together")] = 2**30
    max_object_bytes: Annotated[int, Meta(gt=0, description="Bytes of one object")] = 256 * 2**20


class _Options(msgspec.Struct, frozen=True):
    max_chunk_size: int


class _Description(msgspec.Struct, frozen=True):
    """ADR-20's ObjectInfo; `nuid` names the subject of the chunks."""

    name: str
    bucket: str
    nuid: str
    size: int
    chunks: int
    digest: str
    options: _Options


class Objects:
    """See `open_objects`."""

    def __init__(self, bus: Bus, settings: ObjectSettings, bucket: str) -> None:
        self._bus = bus
        self._settings = settings
        self._bucket = bucket
        self._stream = f"OBJ_{bucket}"

    async def ensure(self) -> None:
        """The bucket is there, as set. Raises as `open_objects`."""
        config = StreamConfig(
            name=self._stream,
            subjects=[f"$O.{self._bucket}.C.>", f"$O.{self._bucket}.M.>"],
            retention="limits",
            storage=self._settings.storage,
            num_replicas=self._settings.num_replicas,
            max_bytes=self._settings.max_bytes,
            allow_direct=True,
            allow_rollup_hdrs=True,
        )
        await ensure_stream(self._bus, config)

    async def put_if_absent(self, data: bytes, timeout_s: float = 30.0) -> str:
        """Stores `data` unless it is there, whole; its digest, the name under which `get` finds it.

        Raises:
            InvalidRequest: more than `max_object_bytes`.
            Overloaded: the bucket is full.
            DeadlineExceeded, Disconnected, NoResponder: nothing is visible; try again.
        """
        if len(data) > self._settings.max_object_bytes:
            raise InvalidRequest(field="object", reason=f"over {self._settings.max_object_bytes} bytes")
        digest = hashlib.sha256(data).hexdigest()
        try:
            async with asyncio.timeout(timeout_s):
                await self.ensure()
                found = await self._find(digest, timeout_s)
                if found is None or await self._read(found, timeout_s) != data:
                    await self._write(digest, data, found, timeout_s)
        except TimeoutError as error:
            raise DeadlineExceeded(what=f"the storing of object {digest}", limit_s=timeout_s) from error
        return digest

    async def get(self, digest: str, timeout_s: float) -> bytes:
        """The object, whole and checked.

        Raises:
            InvalidRequest: there is none of this digest, or it is damaged; putting it again heals that.
            DeadlineExceeded, Disconnected: as `Bus.exchange`.
        """
        try:
            async with asyncio.timeout(timeout_s):
                found = await self._find(digest, timeout_s)
                data = await self._read(found, timeout_s) if found is not None else None
        except TimeoutError as error:
            raise DeadlineExceeded(what=f"the reading of object {digest}", limit_s=timeout_s) from error
        if data is None or hashlib.sha256(data).hexdigest() != digest:
            raise InvalidRequest(field="object", reason=f"no whole object has the digest {digest}")
        return data

    def _description_subject(self, digest: str) -> str:
        return f"$O.{self._bucket}.M.{base64.urlsafe_b64encode(digest.encode()).decode()}"

    def _chunk_subject(self, nuid: str) -> str:
        return f"$O.{self._bucket}.C.{nuid}"

    async def _find(self, digest: str, timeout_s: float) -> Delivery | None:
        return await find_last(self._bus, self._stream, self._description_subject(digest), timeout_s)

    async def _read(self, found: Delivery, timeout_s: float) -> bytes | None:
        """The object described in `found`, unchecked; None if its description or a chunk is bad."""
        try:
            description = msgspec.json.decode(found.payload, type=_Description)
        except msgspec.DecodeError:
            return None
        if not 0 <= description.size <= self._settings.max_object_bytes:
            return None
        subject, sequence = self._chunk_subject(description.nuid), 0
        data = bytearray()
        while len(data) < description.size:
            chunk = await find_next(self._bus, self._stream, subject, sequence + 1, timeout_s)
            if chunk is None or not chunk.payload:
                return None
            data += chunk.payload
            sequence = int(chunk.headers[SEQUENCE_HEADER])
        return bytes(data)

    async def _write(self, digest: str, data: bytes, damaged: Delivery | None, timeout_s: float) -> None:
        """Chunks first, then the description, in the place of `damaged` or of none."""
        nuid = new_id()
        is_visible = False
        try:
            chunks = [data[start : start + CHUNK_BYTES] for start in range(0, len(data), CHUNK_BYTES)]
            for chunk in chunks:
                await put_message(self._bus, self._chunk_subject(nuid), chunk, {}, timeout_s)
            description = self._describe(digest, data, nuid, len(chunks))
            is_visible = await self._reveal(description, damaged, timeout_s)
        finally:
            if not is_visible:
                await self._discard(self._chunk_subject(nuid))

    async def _discard(self, subject: str) -> None:
        """Chunks that nothing describes. One that was cut off on its way would be stored after the purge:
        what is sent behind it, on the same way, takes the place of all before it, and is purged."""
        with suppress(Overloaded, NoResponder, DeadlineExceeded, Disconnected):
            await put_message(self._bus, subject, b"", {"Nats-Rollup": "sub"})
        await purge(self._bus, self._stream, subject)

    def _describe(self, digest: str, data: bytes, nuid: str, num_chunks: int) -> _Description:
        checksum = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode()
        return _Description(
            name=digest,
            bucket=self._bucket,
            nuid=nuid,
            size=len(data),
            chunks=num_chunks,
            digest=f"SHA-256={checksum}",
            options=_Options(CHUNK_BYTES),
        )

    async def _reveal(self, description: _Description, damaged: Delivery | None, timeout_s: float) -> bool:
        """False if another writer was first, which is as good."""
        last = damaged.headers[SEQUENCE_HEADER] if damaged is not None else "0"
        headers = {"Nats-Rollup": "sub", "Nats-Expected-Last-Subject-Sequence": last}
        subject = self._description_subject(description.name)
        ack = await put_message(self._bus, subject, msgspec.json.encode(description), headers, timeout_s)
        return ack.error is None


async def open_objects(bus: Bus, settings: ObjectSettings, bucket: str) -> Objects:
    """The object store in the JetStream bucket named `bucket`, which is made if absent.

    Raises:
        InvalidSetting: the server has no JetStream, or an existing bucket cannot become as set.
        Disconnected, DeadlineExceeded, NoResponder: as `Bus.exchange`.
    """
    objects = Objects(bus, settings, bucket)
    await objects.ensure()
    return objects
