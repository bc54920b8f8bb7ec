from quorum.v1 import queue_pb2 as _queue_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Block(_message.Message):
    __slots__ = ("arrow", "rows", "next_sequence")
    ARROW_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    NEXT_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    arrow: bytes
    rows: int
    next_sequence: int
    def __init__(self, arrow: _Optional[bytes] = ..., rows: _Optional[int] = ..., next_sequence: _Optional[int] = ...) -> None: ...

class Columns(_message.Message):
    __slots__ = ("names", "fields")
    NAMES_FIELD_NUMBER: _ClassVar[int]
    FIELDS_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    fields: _containers.RepeatedCompositeFieldContainer[Field]
    def __init__(self, names: _Optional[_Iterable[str]] = ..., fields: _Optional[_Iterable[_Union[Field, _Mapping]]] = ...) -> None: ...

class Field(_message.Message):
    __slots__ = ("name", "kind")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        KIND_UNSPECIFIED: _ClassVar[Field.Kind]
        TEXT: _ClassVar[Field.Kind]
        INTEGER: _ClassVar[Field.Kind]
        FLOATING: _ClassVar[Field.Kind]
        BOOLEAN: _ClassVar[Field.Kind]
    KIND_UNSPECIFIED: Field.Kind
    TEXT: Field.Kind
    INTEGER: Field.Kind
    FLOATING: Field.Kind
    BOOLEAN: Field.Kind
    NAME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    name: str
    kind: Field.Kind
    def __init__(self, name: _Optional[str] = ..., kind: _Optional[_Union[Field.Kind, str]] = ...) -> None: ...

class OpenSubscriptionRequest(_message.Message):
    __slots__ = ("queue", "subscription", "selector", "start", "timeout_ms", "on_expiry")
    class Start(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        EARLIEST: _ClassVar[OpenSubscriptionRequest.Start]
        LATEST: _ClassVar[OpenSubscriptionRequest.Start]
    EARLIEST: OpenSubscriptionRequest.Start
    LATEST: OpenSubscriptionRequest.Start
    class OnExpiry(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        RELEASE: _ClassVar[OpenSubscriptionRequest.OnExpiry]
        DISCARD: _ClassVar[OpenSubscriptionRequest.OnExpiry]
        KEEP: _ClassVar[OpenSubscriptionRequest.OnExpiry]
    RELEASE: OpenSubscriptionRequest.OnExpiry
    DISCARD: OpenSubscriptionRequest.OnExpiry
    KEEP: OpenSubscriptionRequest.OnExpiry
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    SELECTOR_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    ON_EXPIRY_FIELD_NUMBER: _ClassVar[int]
    queue: str
    subscription: str
    selector: str
    start: OpenSubscriptionRequest.Start
    timeout_ms: int
    on_expiry: OpenSubscriptionRequest.OnExpiry
    def __init__(self, queue: _Optional[str] = ..., subscription: _Optional[str] = ..., selector: _Optional[str] = ..., start: _Optional[_Union[OpenSubscriptionRequest.Start, str]] = ..., timeout_ms: _Optional[int] = ..., on_expiry: _Optional[_Union[OpenSubscriptionRequest.OnExpiry, str]] = ...) -> None: ...

class SubscriptionState(_message.Message):
    __slots__ = ("generation", "settled", "last", "outstanding", "index")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    SETTLED_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    OUTSTANDING_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    generation: int
    settled: int
    last: int
    outstanding: int
    index: int
    def __init__(self, generation: _Optional[int] = ..., settled: _Optional[int] = ..., last: _Optional[int] = ..., outstanding: _Optional[int] = ..., index: _Optional[int] = ...) -> None: ...

class ReserveRequest(_message.Message):
    __slots__ = ("queue", "subscription", "generation", "after", "max_messages", "max_bytes", "min_messages", "wait_ms")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    MIN_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    queue: str
    subscription: str
    generation: int
    after: int
    max_messages: int
    max_bytes: int
    min_messages: int
    wait_ms: int
    def __init__(self, queue: _Optional[str] = ..., subscription: _Optional[str] = ..., generation: _Optional[int] = ..., after: _Optional[int] = ..., max_messages: _Optional[int] = ..., max_bytes: _Optional[int] = ..., min_messages: _Optional[int] = ..., wait_ms: _Optional[int] = ...) -> None: ...

class Reservation(_message.Message):
    __slots__ = ("offset", "count", "size_bytes", "ready", "index", "unfinished")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    UNFINISHED_FIELD_NUMBER: _ClassVar[int]
    offset: int
    count: int
    size_bytes: int
    ready: int
    index: int
    unfinished: bool
    def __init__(self, offset: _Optional[int] = ..., count: _Optional[int] = ..., size_bytes: _Optional[int] = ..., ready: _Optional[int] = ..., index: _Optional[int] = ..., unfinished: bool = ...) -> None: ...

class DescribeReservationsRequest(_message.Message):
    __slots__ = ("queue", "subscription", "after", "to", "index")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    queue: str
    subscription: str
    after: int
    to: int
    index: int
    def __init__(self, queue: _Optional[str] = ..., subscription: _Optional[str] = ..., after: _Optional[int] = ..., to: _Optional[int] = ..., index: _Optional[int] = ...) -> None: ...

class ReservationInfo(_message.Message):
    __slots__ = ("offset", "count", "size_bytes", "opens", "reserved_ms", "index")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    OPENS_FIELD_NUMBER: _ClassVar[int]
    RESERVED_MS_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    offset: int
    count: int
    size_bytes: int
    opens: int
    reserved_ms: int
    index: int
    def __init__(self, offset: _Optional[int] = ..., count: _Optional[int] = ..., size_bytes: _Optional[int] = ..., opens: _Optional[int] = ..., reserved_ms: _Optional[int] = ..., index: _Optional[int] = ...) -> None: ...

class DescribeReservationsResponse(_message.Message):
    __slots__ = ("reservations", "endpoints", "subscription")
    RESERVATIONS_FIELD_NUMBER: _ClassVar[int]
    ENDPOINTS_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    reservations: _containers.RepeatedCompositeFieldContainer[ReservationInfo]
    endpoints: _containers.RepeatedCompositeFieldContainer[Endpoint]
    subscription: SubscriptionState
    def __init__(self, reservations: _Optional[_Iterable[_Union[ReservationInfo, _Mapping]]] = ..., endpoints: _Optional[_Iterable[_Union[Endpoint, _Mapping]]] = ..., subscription: _Optional[_Union[SubscriptionState, _Mapping]] = ...) -> None: ...

class Endpoint(_message.Message):
    __slots__ = ("name", "address", "leader")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    name: str
    address: str
    leader: bool
    def __init__(self, name: _Optional[str] = ..., address: _Optional[str] = ..., leader: bool = ...) -> None: ...

class ReadReservedRequest(_message.Message):
    __slots__ = ("queue", "subscription", "offset", "first", "count", "columns", "index")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    queue: str
    subscription: str
    offset: int
    first: int
    count: int
    columns: Columns
    index: int
    def __init__(self, queue: _Optional[str] = ..., subscription: _Optional[str] = ..., offset: _Optional[int] = ..., first: _Optional[int] = ..., count: _Optional[int] = ..., columns: _Optional[_Union[Columns, _Mapping]] = ..., index: _Optional[int] = ...) -> None: ...

class SettleRequest(_message.Message):
    __slots__ = ("queue", "subscription", "generation", "to")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    queue: str
    subscription: str
    generation: int
    to: int
    def __init__(self, queue: _Optional[str] = ..., subscription: _Optional[str] = ..., generation: _Optional[int] = ..., to: _Optional[int] = ...) -> None: ...

class KeepAliveRequest(_message.Message):
    __slots__ = ("queue", "subscription", "generation")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    queue: str
    subscription: str
    generation: int
    def __init__(self, queue: _Optional[str] = ..., subscription: _Optional[str] = ..., generation: _Optional[int] = ...) -> None: ...

class ReleaseSubscriptionRequest(_message.Message):
    __slots__ = ("queue", "subscription", "generation")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    queue: str
    subscription: str
    generation: int
    def __init__(self, queue: _Optional[str] = ..., subscription: _Optional[str] = ..., generation: _Optional[int] = ...) -> None: ...

class DeleteSubscriptionRequest(_message.Message):
    __slots__ = ("queue", "subscription")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    queue: str
    subscription: str
    def __init__(self, queue: _Optional[str] = ..., subscription: _Optional[str] = ...) -> None: ...

class DeleteSubscriptionResponse(_message.Message):
    __slots__ = ("index",)
    INDEX_FIELD_NUMBER: _ClassVar[int]
    index: int
    def __init__(self, index: _Optional[int] = ...) -> None: ...

class ListSubscriptionsRequest(_message.Message):
    __slots__ = ("queue", "index")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    queue: str
    index: int
    def __init__(self, queue: _Optional[str] = ..., index: _Optional[int] = ...) -> None: ...

class SubscriptionInfo(_message.Message):
    __slots__ = ("subscription", "state", "filtered", "start_sequence", "last_seen_ms", "timeout_ms", "on_expiry", "reservations", "selector", "filter")
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    FILTERED_FIELD_NUMBER: _ClassVar[int]
    START_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    LAST_SEEN_MS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    ON_EXPIRY_FIELD_NUMBER: _ClassVar[int]
    RESERVATIONS_FIELD_NUMBER: _ClassVar[int]
    SELECTOR_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    subscription: str
    state: SubscriptionState
    filtered: bool
    start_sequence: int
    last_seen_ms: int
    timeout_ms: int
    on_expiry: OpenSubscriptionRequest.OnExpiry
    reservations: int
    selector: str
    filter: bytes
    def __init__(self, subscription: _Optional[str] = ..., state: _Optional[_Union[SubscriptionState, _Mapping]] = ..., filtered: bool = ..., start_sequence: _Optional[int] = ..., last_seen_ms: _Optional[int] = ..., timeout_ms: _Optional[int] = ..., on_expiry: _Optional[_Union[OpenSubscriptionRequest.OnExpiry, str]] = ..., reservations: _Optional[int] = ..., selector: _Optional[str] = ..., filter: _Optional[bytes] = ...) -> None: ...

class ListSubscriptionsResponse(_message.Message):
    __slots__ = ("subscriptions", "index")
    SUBSCRIPTIONS_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    subscriptions: _containers.RepeatedCompositeFieldContainer[SubscriptionInfo]
    index: int
    def __init__(self, subscriptions: _Optional[_Iterable[_Union[SubscriptionInfo, _Mapping]]] = ..., index: _Optional[int] = ...) -> None: ...

class OpenViewRequest(_message.Message):
    __slots__ = ("queue", "ttl_ms")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    queue: str
    ttl_ms: int
    def __init__(self, queue: _Optional[str] = ..., ttl_ms: _Optional[int] = ...) -> None: ...

class View(_message.Message):
    __slots__ = ("view", "first_sequence", "end_sequence", "count", "index")
    VIEW_FIELD_NUMBER: _ClassVar[int]
    FIRST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    END_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    view: int
    first_sequence: int
    end_sequence: int
    count: int
    index: int
    def __init__(self, view: _Optional[int] = ..., first_sequence: _Optional[int] = ..., end_sequence: _Optional[int] = ..., count: _Optional[int] = ..., index: _Optional[int] = ...) -> None: ...

class BrowseViewRequest(_message.Message):
    __slots__ = ("queue", "view", "start_sequence", "end_sequence", "selector", "columns", "limit", "index")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    VIEW_FIELD_NUMBER: _ClassVar[int]
    START_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    END_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    SELECTOR_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    queue: str
    view: int
    start_sequence: int
    end_sequence: int
    selector: str
    columns: Columns
    limit: int
    index: int
    def __init__(self, queue: _Optional[str] = ..., view: _Optional[int] = ..., start_sequence: _Optional[int] = ..., end_sequence: _Optional[int] = ..., selector: _Optional[str] = ..., columns: _Optional[_Union[Columns, _Mapping]] = ..., limit: _Optional[int] = ..., index: _Optional[int] = ...) -> None: ...

class CloseViewRequest(_message.Message):
    __slots__ = ("queue", "view")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    VIEW_FIELD_NUMBER: _ClassVar[int]
    queue: str
    view: int
    def __init__(self, queue: _Optional[str] = ..., view: _Optional[int] = ...) -> None: ...

class CloseViewResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StageRequest(_message.Message):
    __slots__ = ("queue", "producer", "batch", "part", "arrow", "first_chunk")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    ARROW_FIELD_NUMBER: _ClassVar[int]
    FIRST_CHUNK_FIELD_NUMBER: _ClassVar[int]
    queue: str
    producer: str
    batch: int
    part: bytes
    arrow: bytes
    first_chunk: int
    def __init__(self, queue: _Optional[str] = ..., producer: _Optional[str] = ..., batch: _Optional[int] = ..., part: _Optional[bytes] = ..., arrow: _Optional[bytes] = ..., first_chunk: _Optional[int] = ...) -> None: ...

class StageResponse(_message.Message):
    __slots__ = ("rows", "size_bytes", "next_chunk", "index")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    NEXT_CHUNK_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    rows: int
    size_bytes: int
    next_chunk: int
    index: int
    def __init__(self, rows: _Optional[int] = ..., size_bytes: _Optional[int] = ..., next_chunk: _Optional[int] = ..., index: _Optional[int] = ...) -> None: ...

class StagedPart(_message.Message):
    __slots__ = ("part", "rows")
    PART_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    part: bytes
    rows: int
    def __init__(self, part: _Optional[bytes] = ..., rows: _Optional[int] = ...) -> None: ...

class PublishStagedRequest(_message.Message):
    __slots__ = ("queue", "producer", "batch", "parts", "staged_to")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    STAGED_TO_FIELD_NUMBER: _ClassVar[int]
    queue: str
    producer: str
    batch: int
    parts: _containers.RepeatedCompositeFieldContainer[StagedPart]
    staged_to: int
    def __init__(self, queue: _Optional[str] = ..., producer: _Optional[str] = ..., batch: _Optional[int] = ..., parts: _Optional[_Iterable[_Union[StagedPart, _Mapping]]] = ..., staged_to: _Optional[int] = ...) -> None: ...

class PublishStagedResponse(_message.Message):
    __slots__ = ("first_sequence", "count", "is_duplicate", "index")
    FIRST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    IS_DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    first_sequence: int
    count: int
    is_duplicate: bool
    index: int
    def __init__(self, first_sequence: _Optional[int] = ..., count: _Optional[int] = ..., is_duplicate: bool = ..., index: _Optional[int] = ...) -> None: ...

class DiscardStagedRequest(_message.Message):
    __slots__ = ("queue", "producer", "batch", "parts", "forget")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    FORGET_FIELD_NUMBER: _ClassVar[int]
    queue: str
    producer: str
    batch: int
    parts: _containers.RepeatedScalarFieldContainer[bytes]
    forget: bool
    def __init__(self, queue: _Optional[str] = ..., producer: _Optional[str] = ..., batch: _Optional[int] = ..., parts: _Optional[_Iterable[bytes]] = ..., forget: bool = ...) -> None: ...

class DiscardStagedResponse(_message.Message):
    __slots__ = ("rows",)
    ROWS_FIELD_NUMBER: _ClassVar[int]
    rows: int
    def __init__(self, rows: _Optional[int] = ...) -> None: ...

class QueueInfoRequest(_message.Message):
    __slots__ = ("queue", "index", "with_fields")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    WITH_FIELDS_FIELD_NUMBER: _ClassVar[int]
    queue: str
    index: int
    with_fields: bool
    def __init__(self, queue: _Optional[str] = ..., index: _Optional[int] = ..., with_fields: bool = ...) -> None: ...

class SeenField(_message.Message):
    __slots__ = ("name", "kind", "messages")
    NAME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    name: str
    kind: Field.Kind
    messages: int
    def __init__(self, name: _Optional[str] = ..., kind: _Optional[_Union[Field.Kind, str]] = ..., messages: _Optional[int] = ...) -> None: ...

class QueueInfoResponse(_message.Message):
    __slots__ = ("arguments", "first_sequence", "next_sequence", "ready", "checked_out", "index", "filter_fields", "fields", "endpoints", "ready_bytes")
    class ArgumentsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _queue_pb2.Value
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_queue_pb2.Value, _Mapping]] = ...) -> None: ...
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    FIRST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    NEXT_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    CHECKED_OUT_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELDS_FIELD_NUMBER: _ClassVar[int]
    FIELDS_FIELD_NUMBER: _ClassVar[int]
    ENDPOINTS_FIELD_NUMBER: _ClassVar[int]
    READY_BYTES_FIELD_NUMBER: _ClassVar[int]
    arguments: _containers.MessageMap[str, _queue_pb2.Value]
    first_sequence: int
    next_sequence: int
    ready: int
    checked_out: int
    index: int
    filter_fields: _containers.RepeatedScalarFieldContainer[str]
    fields: _containers.RepeatedCompositeFieldContainer[SeenField]
    endpoints: _containers.RepeatedCompositeFieldContainer[Endpoint]
    ready_bytes: int
    def __init__(self, arguments: _Optional[_Mapping[str, _queue_pb2.Value]] = ..., first_sequence: _Optional[int] = ..., next_sequence: _Optional[int] = ..., ready: _Optional[int] = ..., checked_out: _Optional[int] = ..., index: _Optional[int] = ..., filter_fields: _Optional[_Iterable[str]] = ..., fields: _Optional[_Iterable[_Union[SeenField, _Mapping]]] = ..., endpoints: _Optional[_Iterable[_Union[Endpoint, _Mapping]]] = ..., ready_bytes: _Optional[int] = ...) -> None: ...
