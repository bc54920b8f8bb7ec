from google.rpc import status_pb2 as _status_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Value(_message.Message):
    __slots__ = ("boolean", "integer", "floating", "text", "binary")
    BOOLEAN_FIELD_NUMBER: _ClassVar[int]
    INTEGER_FIELD_NUMBER: _ClassVar[int]
    FLOATING_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    BINARY_FIELD_NUMBER: _ClassVar[int]
    boolean: bool
    integer: int
    floating: float
    text: str
    binary: bytes
    def __init__(self, boolean: bool = ..., integer: _Optional[int] = ..., floating: _Optional[float] = ..., text: _Optional[str] = ..., binary: _Optional[bytes] = ...) -> None: ...

class Properties(_message.Message):
    __slots__ = ("durable", "priority", "ttl_ms", "delivery_delay_ms", "delivery_time", "message_id", "user_id", "to", "subject", "reply_to", "correlation_id", "content_type", "content_encoding", "absolute_expiry_time", "creation_time", "group_id", "group_sequence", "reply_to_group_id", "application_properties")
    class ApplicationPropertiesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Value
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Value, _Mapping]] = ...) -> None: ...
    DURABLE_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    DELIVERY_DELAY_MS_FIELD_NUMBER: _ClassVar[int]
    DELIVERY_TIME_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    USER_ID_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    REPLY_TO_FIELD_NUMBER: _ClassVar[int]
    CORRELATION_ID_FIELD_NUMBER: _ClassVar[int]
    CONTENT_TYPE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_ENCODING_FIELD_NUMBER: _ClassVar[int]
    ABSOLUTE_EXPIRY_TIME_FIELD_NUMBER: _ClassVar[int]
    CREATION_TIME_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    REPLY_TO_GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    APPLICATION_PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    durable: bool
    priority: int
    ttl_ms: int
    delivery_delay_ms: int
    delivery_time: int
    message_id: str
    user_id: str
    to: str
    subject: str
    reply_to: str
    correlation_id: str
    content_type: str
    content_encoding: str
    absolute_expiry_time: int
    creation_time: int
    group_id: str
    group_sequence: int
    reply_to_group_id: str
    application_properties: _containers.MessageMap[str, Value]
    def __init__(self, durable: bool = ..., priority: _Optional[int] = ..., ttl_ms: _Optional[int] = ..., delivery_delay_ms: _Optional[int] = ..., delivery_time: _Optional[int] = ..., message_id: _Optional[str] = ..., user_id: _Optional[str] = ..., to: _Optional[str] = ..., subject: _Optional[str] = ..., reply_to: _Optional[str] = ..., correlation_id: _Optional[str] = ..., content_type: _Optional[str] = ..., content_encoding: _Optional[str] = ..., absolute_expiry_time: _Optional[int] = ..., creation_time: _Optional[int] = ..., group_id: _Optional[str] = ..., group_sequence: _Optional[int] = ..., reply_to_group_id: _Optional[str] = ..., application_properties: _Optional[_Mapping[str, Value]] = ...) -> None: ...

class MessageBatch(_message.Message):
    __slots__ = ("count", "bodies", "body_ends", "shared_properties", "properties")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    BODIES_FIELD_NUMBER: _ClassVar[int]
    BODY_ENDS_FIELD_NUMBER: _ClassVar[int]
    SHARED_PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    count: int
    bodies: bytes
    body_ends: _containers.RepeatedScalarFieldContainer[int]
    shared_properties: Properties
    properties: _containers.RepeatedCompositeFieldContainer[Properties]
    def __init__(self, count: _Optional[int] = ..., bodies: _Optional[bytes] = ..., body_ends: _Optional[_Iterable[int]] = ..., shared_properties: _Optional[_Union[Properties, _Mapping]] = ..., properties: _Optional[_Iterable[_Union[Properties, _Mapping]]] = ...) -> None: ...

class Range(_message.Message):
    __slots__ = ("first", "last")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    first: int
    last: int
    def __init__(self, first: _Optional[int] = ..., last: _Optional[int] = ...) -> None: ...

class SessionRequest(_message.Message):
    __slots__ = ("open", "publish", "attach", "credit", "disposition", "cancel", "get", "close", "turn", "commit", "rollback")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    PUBLISH_FIELD_NUMBER: _ClassVar[int]
    ATTACH_FIELD_NUMBER: _ClassVar[int]
    CREDIT_FIELD_NUMBER: _ClassVar[int]
    DISPOSITION_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    GET_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    TURN_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    ROLLBACK_FIELD_NUMBER: _ClassVar[int]
    open: Open
    publish: PublishBatch
    attach: Attach
    credit: Credit
    disposition: Disposition
    cancel: Cancel
    get: SessionGet
    close: Close
    turn: RequestTurn
    commit: Commit
    rollback: Rollback
    def __init__(self, open: _Optional[_Union[Open, _Mapping]] = ..., publish: _Optional[_Union[PublishBatch, _Mapping]] = ..., attach: _Optional[_Union[Attach, _Mapping]] = ..., credit: _Optional[_Union[Credit, _Mapping]] = ..., disposition: _Optional[_Union[Disposition, _Mapping]] = ..., cancel: _Optional[_Union[Cancel, _Mapping]] = ..., get: _Optional[_Union[SessionGet, _Mapping]] = ..., close: _Optional[_Union[Close, _Mapping]] = ..., turn: _Optional[_Union[RequestTurn, _Mapping]] = ..., commit: _Optional[_Union[Commit, _Mapping]] = ..., rollback: _Optional[_Union[Rollback, _Mapping]] = ...) -> None: ...

class RequestTurn(_message.Message):
    __slots__ = ("dispositions", "credits", "publish")
    DISPOSITIONS_FIELD_NUMBER: _ClassVar[int]
    CREDITS_FIELD_NUMBER: _ClassVar[int]
    PUBLISH_FIELD_NUMBER: _ClassVar[int]
    dispositions: _containers.RepeatedCompositeFieldContainer[Disposition]
    credits: _containers.RepeatedCompositeFieldContainer[Credit]
    publish: PublishBatch
    def __init__(self, dispositions: _Optional[_Iterable[_Union[Disposition, _Mapping]]] = ..., credits: _Optional[_Iterable[_Union[Credit, _Mapping]]] = ..., publish: _Optional[_Union[PublishBatch, _Mapping]] = ...) -> None: ...

class SessionResponse(_message.Message):
    __slots__ = ("opened", "confirms", "done", "failed", "attached", "delivery", "cancelled", "drained", "turn", "active_changed", "timed_out")
    OPENED_FIELD_NUMBER: _ClassVar[int]
    CONFIRMS_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    ATTACHED_FIELD_NUMBER: _ClassVar[int]
    DELIVERY_FIELD_NUMBER: _ClassVar[int]
    CANCELLED_FIELD_NUMBER: _ClassVar[int]
    DRAINED_FIELD_NUMBER: _ClassVar[int]
    TURN_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_CHANGED_FIELD_NUMBER: _ClassVar[int]
    TIMED_OUT_FIELD_NUMBER: _ClassVar[int]
    opened: Opened
    confirms: Confirms
    done: Done
    failed: Failed
    attached: Attached
    delivery: Delivery
    cancelled: Cancelled
    drained: Drained
    turn: ResponseTurn
    active_changed: ActiveChanged
    timed_out: TimedOut
    def __init__(self, opened: _Optional[_Union[Opened, _Mapping]] = ..., confirms: _Optional[_Union[Confirms, _Mapping]] = ..., done: _Optional[_Union[Done, _Mapping]] = ..., failed: _Optional[_Union[Failed, _Mapping]] = ..., attached: _Optional[_Union[Attached, _Mapping]] = ..., delivery: _Optional[_Union[Delivery, _Mapping]] = ..., cancelled: _Optional[_Union[Cancelled, _Mapping]] = ..., drained: _Optional[_Union[Drained, _Mapping]] = ..., turn: _Optional[_Union[ResponseTurn, _Mapping]] = ..., active_changed: _Optional[_Union[ActiveChanged, _Mapping]] = ..., timed_out: _Optional[_Union[TimedOut, _Mapping]] = ...) -> None: ...

class ResponseTurn(_message.Message):
    __slots__ = ("responses",)
    RESPONSES_FIELD_NUMBER: _ClassVar[int]
    responses: _containers.RepeatedCompositeFieldContainer[SessionResponse]
    def __init__(self, responses: _Optional[_Iterable[_Union[SessionResponse, _Mapping]]] = ...) -> None: ...

class Open(_message.Message):
    __slots__ = ("producer_id", "epoch", "first_new_sequence", "takes_turns")
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    FIRST_NEW_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    TAKES_TURNS_FIELD_NUMBER: _ClassVar[int]
    producer_id: bytes
    epoch: int
    first_new_sequence: int
    takes_turns: bool
    def __init__(self, producer_id: _Optional[bytes] = ..., epoch: _Optional[int] = ..., first_new_sequence: _Optional[int] = ..., takes_turns: bool = ...) -> None: ...

class Close(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Opened(_message.Message):
    __slots__ = ("node", "session", "window_bytes", "max_message_bytes", "max_batch_messages", "max_window_messages", "max_batch_bytes")
    NODE_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    WINDOW_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_BATCH_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    MAX_WINDOW_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    MAX_BATCH_BYTES_FIELD_NUMBER: _ClassVar[int]
    node: str
    session: int
    window_bytes: int
    max_message_bytes: int
    max_batch_messages: int
    max_window_messages: int
    max_batch_bytes: int
    def __init__(self, node: _Optional[str] = ..., session: _Optional[int] = ..., window_bytes: _Optional[int] = ..., max_message_bytes: _Optional[int] = ..., max_batch_messages: _Optional[int] = ..., max_window_messages: _Optional[int] = ..., max_batch_bytes: _Optional[int] = ...) -> None: ...

class PublishBatch(_message.Message):
    __slots__ = ("exchange", "routing_key", "routing_keys", "first_sequence", "lowest_unconfirmed", "batch", "independent", "mandatory", "immediate", "tx")
    EXCHANGE_FIELD_NUMBER: _ClassVar[int]
    ROUTING_KEY_FIELD_NUMBER: _ClassVar[int]
    ROUTING_KEYS_FIELD_NUMBER: _ClassVar[int]
    FIRST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    LOWEST_UNCONFIRMED_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    INDEPENDENT_FIELD_NUMBER: _ClassVar[int]
    MANDATORY_FIELD_NUMBER: _ClassVar[int]
    IMMEDIATE_FIELD_NUMBER: _ClassVar[int]
    TX_FIELD_NUMBER: _ClassVar[int]
    exchange: str
    routing_key: str
    routing_keys: _containers.RepeatedScalarFieldContainer[str]
    first_sequence: int
    lowest_unconfirmed: int
    batch: bytes
    independent: bool
    mandatory: bool
    immediate: bool
    tx: int
    def __init__(self, exchange: _Optional[str] = ..., routing_key: _Optional[str] = ..., routing_keys: _Optional[_Iterable[str]] = ..., first_sequence: _Optional[int] = ..., lowest_unconfirmed: _Optional[int] = ..., batch: _Optional[bytes] = ..., independent: bool = ..., mandatory: bool = ..., immediate: bool = ..., tx: _Optional[int] = ...) -> None: ...

class Confirms(_message.Message):
    __slots__ = ("confirmed", "rejected")
    CONFIRMED_FIELD_NUMBER: _ClassVar[int]
    REJECTED_FIELD_NUMBER: _ClassVar[int]
    confirmed: _containers.RepeatedCompositeFieldContainer[Range]
    rejected: _containers.RepeatedCompositeFieldContainer[Rejection]
    def __init__(self, confirmed: _Optional[_Iterable[_Union[Range, _Mapping]]] = ..., rejected: _Optional[_Iterable[_Union[Rejection, _Mapping]]] = ...) -> None: ...

class Rejection(_message.Message):
    __slots__ = ("range", "status")
    RANGE_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    range: Range
    status: _status_pb2.Status
    def __init__(self, range: _Optional[_Union[Range, _Mapping]] = ..., status: _Optional[_Union[_status_pb2.Status, _Mapping]] = ...) -> None: ...

class Done(_message.Message):
    __slots__ = ("request_ids",)
    REQUEST_IDS_FIELD_NUMBER: _ClassVar[int]
    request_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, request_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class Failed(_message.Message):
    __slots__ = ("request_id", "status")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    status: _status_pb2.Status
    def __init__(self, request_id: _Optional[int] = ..., status: _Optional[_Union[_status_pb2.Status, _Mapping]] = ...) -> None: ...

class Attach(_message.Message):
    __slots__ = ("request_id", "consumer_tag", "queue", "selector", "property_filter", "credit_to", "priority")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_TAG_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    SELECTOR_FIELD_NUMBER: _ClassVar[int]
    PROPERTY_FILTER_FIELD_NUMBER: _ClassVar[int]
    CREDIT_TO_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    consumer_tag: str
    queue: str
    selector: str
    property_filter: PropertyFilter
    credit_to: int
    priority: int
    def __init__(self, request_id: _Optional[int] = ..., consumer_tag: _Optional[str] = ..., queue: _Optional[str] = ..., selector: _Optional[str] = ..., property_filter: _Optional[_Union[PropertyFilter, _Mapping]] = ..., credit_to: _Optional[int] = ..., priority: _Optional[int] = ...) -> None: ...

class PropertyFilter(_message.Message):
    __slots__ = ("properties", "application_properties")
    class PropertiesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Value
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Value, _Mapping]] = ...) -> None: ...
    class ApplicationPropertiesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Value
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Value, _Mapping]] = ...) -> None: ...
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    APPLICATION_PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    properties: _containers.MessageMap[str, Value]
    application_properties: _containers.MessageMap[str, Value]
    def __init__(self, properties: _Optional[_Mapping[str, Value]] = ..., application_properties: _Optional[_Mapping[str, Value]] = ...) -> None: ...

class Attached(_message.Message):
    __slots__ = ("request_id", "consumer_tag", "attach")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_TAG_FIELD_NUMBER: _ClassVar[int]
    ATTACH_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    consumer_tag: str
    attach: int
    def __init__(self, request_id: _Optional[int] = ..., consumer_tag: _Optional[str] = ..., attach: _Optional[int] = ...) -> None: ...

class Credit(_message.Message):
    __slots__ = ("request_id", "consumer_tag", "credit_to", "drain")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_TAG_FIELD_NUMBER: _ClassVar[int]
    CREDIT_TO_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    consumer_tag: str
    credit_to: int
    drain: bool
    def __init__(self, request_id: _Optional[int] = ..., consumer_tag: _Optional[str] = ..., credit_to: _Optional[int] = ..., drain: bool = ...) -> None: ...

class Drained(_message.Message):
    __slots__ = ("consumer_tag", "next_tag")
    CONSUMER_TAG_FIELD_NUMBER: _ClassVar[int]
    NEXT_TAG_FIELD_NUMBER: _ClassVar[int]
    consumer_tag: str
    next_tag: int
    def __init__(self, consumer_tag: _Optional[str] = ..., next_tag: _Optional[int] = ...) -> None: ...

class ActiveChanged(_message.Message):
    __slots__ = ("consumer_tag", "attach", "active")
    CONSUMER_TAG_FIELD_NUMBER: _ClassVar[int]
    ATTACH_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_FIELD_NUMBER: _ClassVar[int]
    consumer_tag: str
    attach: int
    active: bool
    def __init__(self, consumer_tag: _Optional[str] = ..., attach: _Optional[int] = ..., active: bool = ...) -> None: ...

class TimedOut(_message.Message):
    __slots__ = ("consumer_tag", "attach", "last_tag")
    CONSUMER_TAG_FIELD_NUMBER: _ClassVar[int]
    ATTACH_FIELD_NUMBER: _ClassVar[int]
    LAST_TAG_FIELD_NUMBER: _ClassVar[int]
    consumer_tag: str
    attach: int
    last_tag: int
    def __init__(self, consumer_tag: _Optional[str] = ..., attach: _Optional[int] = ..., last_tag: _Optional[int] = ...) -> None: ...

class Delivery(_message.Message):
    __slots__ = ("consumer_tag", "attach", "first_tag", "count", "batch", "sequences", "redelivered", "delivery_counts")
    CONSUMER_TAG_FIELD_NUMBER: _ClassVar[int]
    ATTACH_FIELD_NUMBER: _ClassVar[int]
    FIRST_TAG_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    REDELIVERED_FIELD_NUMBER: _ClassVar[int]
    DELIVERY_COUNTS_FIELD_NUMBER: _ClassVar[int]
    consumer_tag: str
    attach: int
    first_tag: int
    count: int
    batch: bytes
    sequences: _containers.RepeatedCompositeFieldContainer[Range]
    redelivered: _containers.RepeatedCompositeFieldContainer[Range]
    delivery_counts: _containers.RepeatedCompositeFieldContainer[DeliveryCount]
    def __init__(self, consumer_tag: _Optional[str] = ..., attach: _Optional[int] = ..., first_tag: _Optional[int] = ..., count: _Optional[int] = ..., batch: _Optional[bytes] = ..., sequences: _Optional[_Iterable[_Union[Range, _Mapping]]] = ..., redelivered: _Optional[_Iterable[_Union[Range, _Mapping]]] = ..., delivery_counts: _Optional[_Iterable[_Union[DeliveryCount, _Mapping]]] = ...) -> None: ...

class DeliveryCount(_message.Message):
    __slots__ = ("tag", "count")
    TAG_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    tag: int
    count: int
    def __init__(self, tag: _Optional[int] = ..., count: _Optional[int] = ...) -> None: ...

class Disposition(_message.Message):
    __slots__ = ("request_id", "consumer_tag", "attach", "tags", "outcome", "delivery_failed", "undeliverable_here", "credit_to", "queue", "tx")
    class Outcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        OUTCOME_UNSPECIFIED: _ClassVar[Disposition.Outcome]
        SETTLE: _ClassVar[Disposition.Outcome]
        RETURN: _ClassVar[Disposition.Outcome]
        DISCARD: _ClassVar[Disposition.Outcome]
        MODIFY: _ClassVar[Disposition.Outcome]
    OUTCOME_UNSPECIFIED: Disposition.Outcome
    SETTLE: Disposition.Outcome
    RETURN: Disposition.Outcome
    DISCARD: Disposition.Outcome
    MODIFY: Disposition.Outcome
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_TAG_FIELD_NUMBER: _ClassVar[int]
    ATTACH_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    DELIVERY_FAILED_FIELD_NUMBER: _ClassVar[int]
    UNDELIVERABLE_HERE_FIELD_NUMBER: _ClassVar[int]
    CREDIT_TO_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    TX_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    consumer_tag: str
    attach: int
    tags: _containers.RepeatedCompositeFieldContainer[Range]
    outcome: Disposition.Outcome
    delivery_failed: bool
    undeliverable_here: bool
    credit_to: int
    queue: str
    tx: int
    def __init__(self, request_id: _Optional[int] = ..., consumer_tag: _Optional[str] = ..., attach: _Optional[int] = ..., tags: _Optional[_Iterable[_Union[Range, _Mapping]]] = ..., outcome: _Optional[_Union[Disposition.Outcome, str]] = ..., delivery_failed: bool = ..., undeliverable_here: bool = ..., credit_to: _Optional[int] = ..., queue: _Optional[str] = ..., tx: _Optional[int] = ...) -> None: ...

class Commit(_message.Message):
    __slots__ = ("request_id", "tx")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TX_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    tx: int
    def __init__(self, request_id: _Optional[int] = ..., tx: _Optional[int] = ...) -> None: ...

class Rollback(_message.Message):
    __slots__ = ("request_id", "tx")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TX_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    tx: int
    def __init__(self, request_id: _Optional[int] = ..., tx: _Optional[int] = ...) -> None: ...

class Cancel(_message.Message):
    __slots__ = ("request_id", "consumer_tag", "requeue")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_TAG_FIELD_NUMBER: _ClassVar[int]
    REQUEUE_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    consumer_tag: str
    requeue: bool
    def __init__(self, request_id: _Optional[int] = ..., consumer_tag: _Optional[str] = ..., requeue: bool = ...) -> None: ...

class Cancelled(_message.Message):
    __slots__ = ("consumer_tag", "status")
    CONSUMER_TAG_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    consumer_tag: str
    status: _status_pb2.Status
    def __init__(self, consumer_tag: _Optional[str] = ..., status: _Optional[_Union[_status_pb2.Status, _Mapping]] = ...) -> None: ...

class SessionGet(_message.Message):
    __slots__ = ("request_id", "queue", "count", "settled")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    SETTLED_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    queue: str
    count: int
    settled: bool
    def __init__(self, request_id: _Optional[int] = ..., queue: _Optional[str] = ..., count: _Optional[int] = ..., settled: bool = ...) -> None: ...

class Message(_message.Message):
    __slots__ = ("body", "properties")
    BODY_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    body: bytes
    properties: Properties
    def __init__(self, body: _Optional[bytes] = ..., properties: _Optional[_Union[Properties, _Mapping]] = ...) -> None: ...

class PublishRequest(_message.Message):
    __slots__ = ("queue", "messages")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    queue: str
    messages: _containers.RepeatedCompositeFieldContainer[Message]
    def __init__(self, queue: _Optional[str] = ..., messages: _Optional[_Iterable[_Union[Message, _Mapping]]] = ...) -> None: ...

class PublishResponse(_message.Message):
    __slots__ = ("count",)
    COUNT_FIELD_NUMBER: _ClassVar[int]
    count: int
    def __init__(self, count: _Optional[int] = ...) -> None: ...

class GetRequest(_message.Message):
    __slots__ = ("queue", "count")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    queue: str
    count: int
    def __init__(self, queue: _Optional[str] = ..., count: _Optional[int] = ...) -> None: ...

class StoredMessage(_message.Message):
    __slots__ = ("message", "sequence", "redelivered", "delivery_count", "due_time")
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    REDELIVERED_FIELD_NUMBER: _ClassVar[int]
    DELIVERY_COUNT_FIELD_NUMBER: _ClassVar[int]
    DUE_TIME_FIELD_NUMBER: _ClassVar[int]
    message: Message
    sequence: int
    redelivered: bool
    delivery_count: int
    due_time: int
    def __init__(self, message: _Optional[_Union[Message, _Mapping]] = ..., sequence: _Optional[int] = ..., redelivered: bool = ..., delivery_count: _Optional[int] = ..., due_time: _Optional[int] = ...) -> None: ...

class GetResponse(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[StoredMessage]
    def __init__(self, messages: _Optional[_Iterable[_Union[StoredMessage, _Mapping]]] = ...) -> None: ...

class FindLeaderRequest(_message.Message):
    __slots__ = ("queue",)
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    queue: str
    def __init__(self, queue: _Optional[str] = ...) -> None: ...

class FindLeaderResponse(_message.Message):
    __slots__ = ("node", "address")
    NODE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    node: str
    address: str
    def __init__(self, node: _Optional[str] = ..., address: _Optional[str] = ...) -> None: ...

class BrowseRequest(_message.Message):
    __slots__ = ("queue", "start_sequence", "limit", "selector", "property_filter", "delayed")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    START_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    SELECTOR_FIELD_NUMBER: _ClassVar[int]
    PROPERTY_FILTER_FIELD_NUMBER: _ClassVar[int]
    DELAYED_FIELD_NUMBER: _ClassVar[int]
    queue: str
    start_sequence: int
    limit: int
    selector: str
    property_filter: PropertyFilter
    delayed: bool
    def __init__(self, queue: _Optional[str] = ..., start_sequence: _Optional[int] = ..., limit: _Optional[int] = ..., selector: _Optional[str] = ..., property_filter: _Optional[_Union[PropertyFilter, _Mapping]] = ..., delayed: bool = ...) -> None: ...

class BrowseResponse(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[StoredMessage]
    def __init__(self, messages: _Optional[_Iterable[_Union[StoredMessage, _Mapping]]] = ...) -> None: ...
