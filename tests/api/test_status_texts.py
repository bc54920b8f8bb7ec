"""What clients are told has a bounded size, whatever they have sent (quorum/api/status.py, grpc/rpc_status.py)."""

from __future__ import annotations

from google.rpc import code_pb2, error_details_pb2

from quorum.api import status
from quorum.api.grpc.rpc_status import to_proto


def test_a_long_name_is_cut_in_the_answer() -> None:
    told = to_proto(status.no_queue("\x01" * 65_000).status)
    assert len(told.message) < status.MAX_TEXT + 50
    assert told.message.startswith("there is no queue '")
    assert told.ByteSize() < 3 * status.MAX_TEXT
    info = error_details_pb2.ErrorInfo()
    assert told.details[0].Unpack(info)
    assert len(info.metadata["queue"]) == status.MAX_METADATA


def test_the_codes_are_those_of_google_rpc() -> None:
    assert {code.name: code.value for code in status.Code}.items() <= dict(code_pb2.Code.items()).items()
