"""Reading and writing many messages at a time, exactly once, as Arrow record batches: `BulkClient(url)`."""

from quorum.client.bulk import BulkClient
from quorum.client.bulk_records import (
    BulkQueueInfo,
    Endpoint,
    GroupInfo,
    GroupState,
    Published,
    Reservation,
    ReservationInfo,
    Reservations,
    SeenField,
    Snapshot,
    StagedPart,
)

__all__ = [
    "BulkClient",
    "BulkQueueInfo",
    "Endpoint",
    "GroupInfo",
    "GroupState",
    "Published",
    "Reservation",
    "ReservationInfo",
    "Reservations",
    "SeenField",
    "Snapshot",
    "StagedPart",
]
