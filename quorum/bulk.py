"""The bulk client `BulkClient(url)`: reads and writes many messages at a time, exactly once, as Arrow record
batches."""

try:
    from quorum.client.bulk.client import BulkClient
except ModuleNotFoundError as error:
    if error.name != "pyarrow":
        raise
    raise ModuleNotFoundError(
        "quorum.bulk needs pyarrow: pip install 'FILE.whl[bulk]', where FILE.whl is the wheel of this release; "
        "'.[bulk]' in its source tree",
        name=error.name,
    ) from error
from quorum.client.bulk.records import (
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
