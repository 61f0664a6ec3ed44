"""What is asked about: the table `[route]`."""

from typing import Annotated

import msgspec
from msgspec import Meta

from services.status.status_settings import Address, StatusSettings, find_mesh


class RouteSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A prompt, and the mesh whose router is asked. Nothing is sent to a worker."""

    state: Annotated[str, Meta(description="state folder of a mesh that `kvmesh up` runs")] = ".state"
    nats: Annotated[str, Meta(description="URL of the mesh's NATS; empty: as the state folder says")] = ""
    etcd: Annotated[str, Meta(description="host:port of its etcd; empty: as the state folder says")] = ""
    ns: Annotated[str, Meta(description="its namespace; empty: as the state folder says, else default")] = ""
    model: Annotated[str, Meta(description="name of the model; empty: the only one")] = ""
    prompt: Annotated[str, Meta(description="the prompt as text, for the model's own tokenizer")] = ""
    tokens: Annotated[list[int], Meta(description="the prompt as token ids, instead of text")] = []
    salt: Annotated[str, Meta(description="the tenant's salt, as in cache_salt")] = ""
    worker_id: Annotated[str, Meta(description="the only worker that may be chosen")] = ""
    max_tokens: Annotated[int, Meta(description="the most tokens of an answer", ge=1)] = 128
    explain: Annotated[bool, Meta(description="show the terms of every worker, not the choice alone")] = False
    json: Annotated[bool, Meta(description="write all of it as JSON")] = False
    limit: Annotated[int, Meta(description="workers that are shown at most, the cheapest ones", ge=1)] = 1024
    limit_s: Annotated[float, Meta(description="seconds that each answer may take", gt=0)] = 5.0

    @property
    def address(self) -> Address:
        """
        Raises:
            InvalidSetting: no mesh runs there.
        """
        return find_mesh(StatusSettings(state=self.state, nats=self.nats, etcd=self.etcd, ns=self.ns))
