"""The client: `connect` (asyncio), messages, errors. The blocking facade is `quorum.sync`."""

from quorum.client.client import Client, connect
from quorum.client.messages.batch import Message, PreparedBatch, encode_batch
from quorum.client.messages.delivery import DeliveredMessage, Delivery
from quorum.client.session.consumer import Consumer
from quorum.client.session.transaction import Transaction
from quorum.client.values import Properties

__all__ = [
    "Client",
    "Consumer",
    "DeliveredMessage",
    "Delivery",
    "Message",
    "PreparedBatch",
    "Properties",
    "Transaction",
    "connect",
    "encode_batch",
]
