"""Ports for programs that are told theirs."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def reserved_port() -> Iterator[tuple[socket.socket, int]]:
    """A port that nobody else is given while the block runs, and the socket that holds it: until that listens, a server
    which may reuse addresses, as ours may, can."""
    with socket.socket() as reserved:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("127.0.0.1", 0))
        yield reserved, int(reserved.getsockname()[1])
