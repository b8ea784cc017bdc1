"""The preloader serves whatever number its socket has."""

from __future__ import annotations

import fcntl
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """Descriptors beyond 1023 may be opened."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 1200:
        pytest.skip(f"this machine allows {hard} descriptors a process, too few for one beyond 1023")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1200), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_descriptors")
def test_a_socket_beyond_select_s_reach_is_served_until_it_closes() -> None:
    ours, theirs = socket.socketpair()
    high = fcntl.fcntl(theirs.fileno(), fcntl.F_DUPFD, 1100)
    command = [sys.executable, "-m", "infra.supervisor.preloader", str(os.getpid()), str(high), "fractions"]
    with subprocess.Popen(command, pass_fds=[high], stderr=subprocess.PIPE) as preloader:
        theirs.close()
        os.close(high)
        assert ours.recv(4096)  # ready
        ours.close()
        assert preloader.wait(20) == 0, preloader.stderr.read() if preloader.stderr else b""
