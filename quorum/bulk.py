"""The bulk client `BulkClient(url)`: reads and writes many messages at a time, exactly once, as Arrow record
batches."""

from quorum.client.bulk import BulkClient
from quorum.client.bulk_records import (
    BulkQueueInfo,
    Endpoint,
    Published,
    Reservation,
    ReservationInfo,
    Reservations,
    SeenField,
    StagedPart,
    SubscriptionInfo,
    SubscriptionState,
    View,
)

__all__ = [
    "BulkClient",
    "BulkQueueInfo",
    "Endpoint",
    "Published",
    "Reservation",
    "ReservationInfo",
    "Reservations",
    "SeenField",
    "StagedPart",
    "SubscriptionInfo",
    "SubscriptionState",
    "View",
]
