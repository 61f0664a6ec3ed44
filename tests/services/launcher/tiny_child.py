"""A program for tests: it answers `/readyz` on a port, and ends, or does not end, as it is told.

Arguments: port, then any of `deaf` (SIGTERM changes nothing), `brief` (ends by itself once it was asked) and
`parent` (starts a process of its own, and prints its pid).
"""

import signal
import socket
import subprocess
import sys

_OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


def main(port: int, *manners: str) -> None:
    if "deaf" in manners:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "parent" in manners:
        print(subprocess.Popen(["sleep", "60"]).pid, flush=True)
    with socket.create_server(("127.0.0.1", port)) as listener:
        while True:
            with listener.accept()[0] as asked:
                asked.recv(4096)
                asked.sendall(_OK)
            if "brief" in manners:
                sys.exit(3)


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
