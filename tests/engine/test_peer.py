import asyncio
import os
import signal
import socket

import pytest

from tui.engine import endpoint, peer, server
from tui.engine.client import EngineClient
from tui.engine.server import Server
from tui.messages import Error, Setup


def test_the_other_end_of_a_pair_is_oneself():
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    with ours, theirs:
        assert peer.peer_uid(ours) == os.getuid()
        assert peer.is_own(ours)


@pytest.mark.parametrize(("uid", "own"), [(None, True), (os.getuid() + 1, False)])
def test_another_user_is_not_oneself(monkeypatch, uid, own):
    monkeypatch.setattr(peer, "peer_uid", lambda connection: uid)
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    with ours, theirs:
        assert peer.is_own(ours) is own


async def test_a_stranger_is_told_nothing(monkeypatch, tmp_path_factory):
    monkeypatch.setattr(server, "is_own", lambda connection: False)
    listener, path = endpoint.listen(tmp_path_factory.mktemp("run") / "engine-1.sock")
    serving = Server(Setup(model="/no/such/model"))
    running = asyncio.ensure_future(serving.run(listener))
    client = await EngineClient.attach(path)
    events = [event async for event in client.events()]
    assert [type(event) for event in events] == [Error]
    assert "was lost" in events[0].sentence
    signal.raise_signal(signal.SIGTERM)
    assert await running == 0
