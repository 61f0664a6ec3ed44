"""The keep-alives of many leases: what is asked for at about one moment, etcd is asked at once."""

import asyncio

from proto.errors import KvmeshError
from services.etcd import EtcdClient

GATHER_S = 0.02
MAX_LEASES = 500


class Renewals:
    """Belongs to one event loop; `run` asks. `renew` may be called only while it runs."""

    def __init__(self, client: EtcdClient, limit_s: float) -> None:
        self._client = client
        self._limit_s = limit_s
        self._asked: dict[int, asyncio.Future[float]] = {}
        self._news = asyncio.Event()

    async def renew(self, lease_id: int) -> float:
        """Seconds that the lease now has; 0 when there is none of this id. Raises as `EtcdClient.renew`."""
        answer = self._asked.get(lease_id)
        if answer is None:
            answer = self._asked[lease_id] = asyncio.get_running_loop().create_future()
            self._news.set()
        return await answer

    async def run(self) -> None:
        """For ever. A batch that etcd is slow to answer keeps none behind it waiting."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                await self._news.wait()
                await asyncio.sleep(GATHER_S)
                self._news.clear()
                asked, self._asked = self._asked, {}
                leases = list(asked)
                for start in range(0, len(leases), MAX_LEASES):
                    batch = {lease: asked[lease] for lease in leases[start : start + MAX_LEASES]}
                    tasks.create_task(self._ask(batch), name="lease renewals")

    async def _ask(self, batch: dict[int, asyncio.Future[float]]) -> None:
        try:
            left_s = await self._client.renew(list(batch), self._limit_s)
        except KvmeshError as error:
            for answer in batch.values():
                if not answer.done():
                    answer.set_exception(error)
            return
        for lease_id, answer in batch.items():
            if not answer.done():
                answer.set_result(left_s.get(lease_id, 0.0))
