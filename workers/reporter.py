"""A worker's report of its load: its beat."""

from proto.codec import encode
from proto.reports import LoadReport
from workers.decode_desk import DecodeDesk
from workers.engine.engine import Engine
from workers.event_publisher import EventPublisher
from workers.prefill_desk import PrefillDesk
from workers.roles.lender import Lender
from workers.roles.term import Term
from workers.transfer.moved import MovedCounter


class Reporter:
    """Puts together what the parts of a worker know of themselves."""

    def __init__(
        self,
        term: Term,
        model: str,
        engine: Engine,
        decode_desk: DecodeDesk,
        prefill_desk: PrefillDesk,
        lender: Lender,
        publisher: EventPublisher,
        moved: MovedCounter,
        zone: str,
    ) -> None:
        self._term = term
        self._model = model
        self._engine = engine
        self._decode_desk = decode_desk
        self._prefill_desk = prefill_desk
        self._lender = lender
        self._publisher = publisher
        self._moved = moved
        self._zone = zone

    def payload(self) -> bytes:
        return encode(self.report())

    def report(self) -> LoadReport:
        load = self._engine.load()
        return LoadReport(
            worker=self._term.worker,
            model=self._model,
            incarnation=self._term.incarnation,
            epoch=self._term.epoch,
            role=self._term.role,
            state=self._term.state,
            num_running=load.num_running,
            num_waiting=load.num_waiting + load.num_awaiting + load.num_frozen,
            waiting_tokens=load.waiting_tokens - load.job_tokens,
            num_jobs=self._prefill_desk.num_jobs,
            job_tokens=load.job_tokens + self._prefill_desk.num_unscheduled_tokens,
            max_sequences=self._engine.settings.max_sequences,
            total_blocks=load.total_blocks,
            free_blocks=load.free_blocks,
            cached_blocks=load.cached_blocks,
            granted_blocks=self._lender.grants.num_granted_blocks,
            quarantined_blocks=self._lender.grants.num_quarantined_blocks,
            prefill_rate=load.prefill_rate,
            decode_step_s=load.decode_step_s,
            hit_tokens=load.hit_tokens,
            prompt_tokens=load.prompt_tokens,
            last_event=self._publisher.number,
            decisions=self._decode_desk.decisions.included(),
            push_bytes_per_s=self._moved.push_bytes_per_s,
            jobs_taken=self._prefill_desk.num_taken,
            zone=self._zone,
            change=self._term.change,
            num_served=self._term.num_served,
        )
