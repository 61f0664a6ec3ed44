"""A process in which constraints are tried.

A few lines of schema can take the grammar library hours, and none of its own bounds helps against all such.
Here the kernel ends it: a trial may take so many seconds of the processor, however busy the machine is, and
`TRIAL_BYTES` of memory. Constraints come in, and what is wrong with each goes out, or nothing; every message
after its length. Its arguments: those seconds, and then those of a `Vocabulary`, or none.
"""

import resource
import sys
from pathlib import Path

from proto.codec import decode
from proto.constraints import Constraint
from proto.errors import InvalidRequest
from services.grammars.vocabulary import Vocabulary, check_grammar
from services.pipe_messages import try_read_message, write_message

TRIAL_BYTES = 2 * 2**30
_READY = b"ready"


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (TRIAL_BYTES, TRIAL_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    cpu_s = int(sys.argv[1])
    vocabulary = _vocabulary(sys.argv[2:])
    source, answers = sys.stdin.buffer, sys.stdout.buffer
    write_message(answers, _READY)
    while message := try_read_message(source):
        _limit_cpu(cpu_s)
        write_message(answers, try_constraint(decode(message, Constraint), vocabulary).encode())


def try_constraint(constraint: Constraint, vocabulary: Vocabulary | None) -> str:
    """What is wrong with it; nothing if it can be used."""
    try:
        if vocabulary is None:
            check_grammar(constraint)
        else:
            vocabulary.compile(constraint)
    except InvalidRequest as error:
        return str(error.values["reason"])
    return ""


def _vocabulary(arguments: list[str]) -> Vocabulary | None:
    if not arguments:
        return None
    tokenizer_path, vocab_size, *eos_tokens = arguments
    return Vocabulary(Path(tokenizer_path), int(vocab_size), list(map(int, eos_tokens)))


def _limit_cpu(cpu_s: int) -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    limit_s = int(used.ru_utime + used.ru_stime) + 1 + cpu_s
    resource.setrlimit(resource.RLIMIT_CPU, (limit_s, resource.RLIM_INFINITY))


if __name__ == "__main__":
    main()
