"""The bulk client `BulkClient(url)`: reads and writes many messages at a time, exactly once, as Arrow record
batches."""

from quorum.errors import how_to_install

try:
    from quorum.client.bulk import BulkClient
except ModuleNotFoundError as error:
    if error.name != "pyarrow":
        raise
    raise ModuleNotFoundError(
        f"quorum.bulk needs pyarrow: {how_to_install('bulk')}", name=error.name
    ) from error
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
