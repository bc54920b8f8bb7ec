"""What clients are told has a bounded size, whatever they have sent (quorum/api/status.py)."""

from __future__ import annotations

from google.rpc import error_details_pb2

from quorum.api import status


def test_a_long_name_is_cut_in_the_answer() -> None:
    told = status.no_queue("\x01" * 65_000).status
    assert len(told.message) < status.MAX_TEXT + 50
    assert told.message.startswith("there is no queue '")
    assert told.ByteSize() < 3 * status.MAX_TEXT
    info = error_details_pb2.ErrorInfo()
    assert told.details[0].Unpack(info)
    assert len(info.metadata["queue"]) == status.MAX_METADATA
