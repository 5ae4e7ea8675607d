"""Accepting over real sockets when the machine gives no more of them."""

from __future__ import annotations

import asyncio
import errno
import socket

import pytest

from gpuwatch.exporter.accept import Acceptor


class Scarce(socket.socket):
    """A listener that raises the given errors before it accepts."""

    def __init__(self, *errors):
        super().__init__(socket.AF_INET, socket.SOCK_STREAM)
        self.errors = list(errors)
        self.bind(("127.0.0.1", 0))
        self.listen(16)

    def accept(self):
        if self.errors:
            raise OSError(self.errors.pop(0), "Too many open files")
        return super().accept()


@pytest.mark.parametrize(("errors", "lines"), [((errno.EMFILE, errno.EMFILE), 1), ((errno.ECONNABORTED,), 0)])
def test_a_client_that_could_not_be_accepted_is_served_when_it_can_be(errors, lines, monkeypatch, caplog):
    monkeypatch.setattr("gpuwatch.exporter.accept._PAUSE", 0.05)

    async def serve(_, writer):
        writer.write(b"hello")
        writer.close()

    async def ask():
        acceptor = Acceptor(listener, serve, lambda: None, handshake=5.0, limit=1000)
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        try:
            return await asyncio.wait_for(reader.read(), 20)
        finally:
            acceptor.close()
            writer.close()
            await writer.wait_closed()

    with Scarce(*errors) as listener:
        assert asyncio.run(ask()) == b"hello"
    assert [record.message for record in caplog.records] == [
        "no more connections can be accepted: Too many open files"
    ] * lines
