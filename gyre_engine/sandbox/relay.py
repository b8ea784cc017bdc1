"""The way out of a sandbox, inside: 127.0.0.1:PORT to the mounted unix socket, for harnesses that speak TCP only.

`python3 -I -S relay.py PORT SOCKET COMMAND...` runs COMMAND beside it and exits with its code. Standard library only.
"""

from __future__ import annotations

import os
import socket
import sys
import threading


def _copy(source: socket.socket, sink: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            sink.sendall(data)
    except OSError:
        pass  # either side went away: the finally below tells the other
    finally:
        for end in (source, sink):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue


def _serve(listener: socket.socket, path: str) -> None:
    while True:
        client, _ = listener.accept()
        out = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            out.connect(path)
        except OSError:
            client.close()
            out.close()
            continue
        for pair in ((client, out), (out, client)):
            threading.Thread(target=_copy, args=pair, daemon=True).start()


def main(port: int, path: str, command: list[str]) -> int:
    """Listen first, then start the command, so that it finds the endpoint at once."""
    listener = socket.create_server(("127.0.0.1", port), backlog=64)
    pid = os.posix_spawnp(command[0], command, os.environ)
    threading.Thread(target=_serve, args=(listener, path), daemon=True).start()
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    os._exit(main(int(sys.argv[1]), sys.argv[2], sys.argv[3:]))
