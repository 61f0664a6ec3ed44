"""How much what computes yields to the other threads of its machine."""

import logging
import os
import threading

log = logging.getLogger(__name__)


def yield_to_others(niceness: int) -> None:
    """The calling thread alone, and those that it starts: Linux counts them apart, and others refuse."""
    if not niceness:
        return
    try:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), niceness)
    except OSError as error:
        log.info("a thread that should yields to nobody", extra={"reason": str(error)})
