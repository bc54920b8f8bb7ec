from quorum.v1 import queue_pb2 as _queue_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DeclareQueueRequest(_message.Message):
    __slots__ = ("queue", "arguments")
    class ArgumentsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _queue_pb2.Value
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_queue_pb2.Value, _Mapping]] = ...) -> None: ...
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    queue: str
    arguments: _containers.MessageMap[str, _queue_pb2.Value]
    def __init__(self, queue: _Optional[str] = ..., arguments: _Optional[_Mapping[str, _queue_pb2.Value]] = ...) -> None: ...

class DeclareQueueResponse(_message.Message):
    __slots__ = ("created",)
    CREATED_FIELD_NUMBER: _ClassVar[int]
    created: bool
    def __init__(self, created: bool = ...) -> None: ...

class DeleteQueueRequest(_message.Message):
    __slots__ = ("queue", "id")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    queue: str
    id: int
    def __init__(self, queue: _Optional[str] = ..., id: _Optional[int] = ...) -> None: ...

class DeleteQueueResponse(_message.Message):
    __slots__ = ("message_count",)
    MESSAGE_COUNT_FIELD_NUMBER: _ClassVar[int]
    message_count: int
    def __init__(self, message_count: _Optional[int] = ...) -> None: ...

class PurgeQueueRequest(_message.Message):
    __slots__ = ("queue", "id", "before_sequence", "dead_only")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    BEFORE_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    DEAD_ONLY_FIELD_NUMBER: _ClassVar[int]
    queue: str
    id: int
    before_sequence: int
    dead_only: bool
    def __init__(self, queue: _Optional[str] = ..., id: _Optional[int] = ..., before_sequence: _Optional[int] = ..., dead_only: bool = ...) -> None: ...

class PurgeQueueResponse(_message.Message):
    __slots__ = ("message_count",)
    MESSAGE_COUNT_FIELD_NUMBER: _ClassVar[int]
    message_count: int
    def __init__(self, message_count: _Optional[int] = ...) -> None: ...

class PriorityCount(_message.Message):
    __slots__ = ("priority", "ready")
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    priority: int
    ready: int
    def __init__(self, priority: _Optional[int] = ..., ready: _Optional[int] = ...) -> None: ...

class SetUserRequest(_message.Message):
    __slots__ = ("user", "password", "administers", "monitors")
    USER_FIELD_NUMBER: _ClassVar[int]
    PASSWORD_FIELD_NUMBER: _ClassVar[int]
    ADMINISTERS_FIELD_NUMBER: _ClassVar[int]
    MONITORS_FIELD_NUMBER: _ClassVar[int]
    user: str
    password: str
    administers: bool
    monitors: bool
    def __init__(self, user: _Optional[str] = ..., password: _Optional[str] = ..., administers: bool = ..., monitors: bool = ...) -> None: ...

class SetUserResponse(_message.Message):
    __slots__ = ("changed",)
    CHANGED_FIELD_NUMBER: _ClassVar[int]
    changed: bool
    def __init__(self, changed: bool = ...) -> None: ...

class SetPermissionsRequest(_message.Message):
    __slots__ = ("user", "configure", "write", "read")
    USER_FIELD_NUMBER: _ClassVar[int]
    CONFIGURE_FIELD_NUMBER: _ClassVar[int]
    WRITE_FIELD_NUMBER: _ClassVar[int]
    READ_FIELD_NUMBER: _ClassVar[int]
    user: str
    configure: str
    write: str
    read: str
    def __init__(self, user: _Optional[str] = ..., configure: _Optional[str] = ..., write: _Optional[str] = ..., read: _Optional[str] = ...) -> None: ...

class SetPermissionsResponse(_message.Message):
    __slots__ = ("changed",)
    CHANGED_FIELD_NUMBER: _ClassVar[int]
    changed: bool
    def __init__(self, changed: bool = ...) -> None: ...

class DeleteUserRequest(_message.Message):
    __slots__ = ("user",)
    USER_FIELD_NUMBER: _ClassVar[int]
    user: str
    def __init__(self, user: _Optional[str] = ...) -> None: ...

class DeleteUserResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListUsersRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class UserInfo(_message.Message):
    __slots__ = ("user", "administers", "monitors", "configure", "write", "read", "has_password", "queues")
    USER_FIELD_NUMBER: _ClassVar[int]
    ADMINISTERS_FIELD_NUMBER: _ClassVar[int]
    MONITORS_FIELD_NUMBER: _ClassVar[int]
    CONFIGURE_FIELD_NUMBER: _ClassVar[int]
    WRITE_FIELD_NUMBER: _ClassVar[int]
    READ_FIELD_NUMBER: _ClassVar[int]
    HAS_PASSWORD_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    user: str
    administers: bool
    monitors: bool
    configure: str
    write: str
    read: str
    has_password: bool
    queues: int
    def __init__(self, user: _Optional[str] = ..., administers: bool = ..., monitors: bool = ..., configure: _Optional[str] = ..., write: _Optional[str] = ..., read: _Optional[str] = ..., has_password: bool = ..., queues: _Optional[int] = ...) -> None: ...

class ListUsersResponse(_message.Message):
    __slots__ = ("users",)
    USERS_FIELD_NUMBER: _ClassVar[int]
    users: _containers.RepeatedCompositeFieldContainer[UserInfo]
    def __init__(self, users: _Optional[_Iterable[_Union[UserInfo, _Mapping]]] = ...) -> None: ...

class QueueInfo(_message.Message):
    __slots__ = ("name", "id", "group", "leader", "arguments", "ready", "checked_out", "total", "consumers", "first_sequence", "next_sequence", "ready_bytes", "policy", "effective_arguments", "totals", "ready_by_priority", "delayed", "dead", "dead_letter_problem", "held_groups", "owner")
    class ArgumentsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _queue_pb2.Value
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_queue_pb2.Value, _Mapping]] = ...) -> None: ...
    class EffectiveArgumentsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _queue_pb2.Value
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_queue_pb2.Value, _Mapping]] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    CHECKED_OUT_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    CONSUMERS_FIELD_NUMBER: _ClassVar[int]
    FIRST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    NEXT_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    READY_BYTES_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    EFFECTIVE_ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    TOTALS_FIELD_NUMBER: _ClassVar[int]
    READY_BY_PRIORITY_FIELD_NUMBER: _ClassVar[int]
    DELAYED_FIELD_NUMBER: _ClassVar[int]
    DEAD_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTER_PROBLEM_FIELD_NUMBER: _ClassVar[int]
    HELD_GROUPS_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    name: str
    id: int
    group: int
    leader: str
    arguments: _containers.MessageMap[str, _queue_pb2.Value]
    ready: int
    checked_out: int
    total: int
    consumers: int
    first_sequence: int
    next_sequence: int
    ready_bytes: int
    policy: str
    effective_arguments: _containers.MessageMap[str, _queue_pb2.Value]
    totals: QueueTotals
    ready_by_priority: _containers.RepeatedCompositeFieldContainer[PriorityCount]
    delayed: int
    dead: int
    dead_letter_problem: str
    held_groups: int
    owner: str
    def __init__(self, name: _Optional[str] = ..., id: _Optional[int] = ..., group: _Optional[int] = ..., leader: _Optional[str] = ..., arguments: _Optional[_Mapping[str, _queue_pb2.Value]] = ..., ready: _Optional[int] = ..., checked_out: _Optional[int] = ..., total: _Optional[int] = ..., consumers: _Optional[int] = ..., first_sequence: _Optional[int] = ..., next_sequence: _Optional[int] = ..., ready_bytes: _Optional[int] = ..., policy: _Optional[str] = ..., effective_arguments: _Optional[_Mapping[str, _queue_pb2.Value]] = ..., totals: _Optional[_Union[QueueTotals, _Mapping]] = ..., ready_by_priority: _Optional[_Iterable[_Union[PriorityCount, _Mapping]]] = ..., delayed: _Optional[int] = ..., dead: _Optional[int] = ..., dead_letter_problem: _Optional[str] = ..., held_groups: _Optional[int] = ..., owner: _Optional[str] = ...) -> None: ...

class QueueTotals(_message.Message):
    __slots__ = ("published", "settled", "expired", "rejected", "delivery_limit", "maxlen", "purged", "returned", "redelivered", "dead_lettered")
    PUBLISHED_FIELD_NUMBER: _ClassVar[int]
    SETTLED_FIELD_NUMBER: _ClassVar[int]
    EXPIRED_FIELD_NUMBER: _ClassVar[int]
    REJECTED_FIELD_NUMBER: _ClassVar[int]
    DELIVERY_LIMIT_FIELD_NUMBER: _ClassVar[int]
    MAXLEN_FIELD_NUMBER: _ClassVar[int]
    PURGED_FIELD_NUMBER: _ClassVar[int]
    RETURNED_FIELD_NUMBER: _ClassVar[int]
    REDELIVERED_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTERED_FIELD_NUMBER: _ClassVar[int]
    published: int
    settled: int
    expired: int
    rejected: int
    delivery_limit: int
    maxlen: int
    purged: int
    returned: int
    redelivered: int
    dead_lettered: int
    def __init__(self, published: _Optional[int] = ..., settled: _Optional[int] = ..., expired: _Optional[int] = ..., rejected: _Optional[int] = ..., delivery_limit: _Optional[int] = ..., maxlen: _Optional[int] = ..., purged: _Optional[int] = ..., returned: _Optional[int] = ..., redelivered: _Optional[int] = ..., dead_lettered: _Optional[int] = ...) -> None: ...

class ListQueuesRequest(_message.Message):
    __slots__ = ("prefix", "limit", "after")
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    prefix: str
    limit: int
    after: str
    def __init__(self, prefix: _Optional[str] = ..., limit: _Optional[int] = ..., after: _Optional[str] = ...) -> None: ...

class ListQueuesResponse(_message.Message):
    __slots__ = ("queues", "next_after")
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    NEXT_AFTER_FIELD_NUMBER: _ClassVar[int]
    queues: _containers.RepeatedCompositeFieldContainer[QueueInfo]
    next_after: str
    def __init__(self, queues: _Optional[_Iterable[_Union[QueueInfo, _Mapping]]] = ..., next_after: _Optional[str] = ...) -> None: ...

class DescribeQueueRequest(_message.Message):
    __slots__ = ("queue", "consumers_after")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    CONSUMERS_AFTER_FIELD_NUMBER: _ClassVar[int]
    queue: str
    consumers_after: int
    def __init__(self, queue: _Optional[str] = ..., consumers_after: _Optional[int] = ...) -> None: ...

class ConsumerInfo(_message.Message):
    __slots__ = ("consumer_tag", "node", "filtered", "credit", "checked_out", "selector", "filter", "priority", "active", "timed_out")
    CONSUMER_TAG_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    FILTERED_FIELD_NUMBER: _ClassVar[int]
    CREDIT_FIELD_NUMBER: _ClassVar[int]
    CHECKED_OUT_FIELD_NUMBER: _ClassVar[int]
    SELECTOR_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_FIELD_NUMBER: _ClassVar[int]
    TIMED_OUT_FIELD_NUMBER: _ClassVar[int]
    consumer_tag: str
    node: str
    filtered: bool
    credit: int
    checked_out: int
    selector: str
    filter: bytes
    priority: int
    active: bool
    timed_out: int
    def __init__(self, consumer_tag: _Optional[str] = ..., node: _Optional[str] = ..., filtered: bool = ..., credit: _Optional[int] = ..., checked_out: _Optional[int] = ..., selector: _Optional[str] = ..., filter: _Optional[bytes] = ..., priority: _Optional[int] = ..., active: bool = ..., timed_out: _Optional[int] = ...) -> None: ...

class StorageInfo(_message.Message):
    __slots__ = ("alpha", "beta", "gamma", "delta", "warm_blocks", "cold_blocks", "warm_bytes")
    ALPHA_FIELD_NUMBER: _ClassVar[int]
    BETA_FIELD_NUMBER: _ClassVar[int]
    GAMMA_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    WARM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    COLD_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    WARM_BYTES_FIELD_NUMBER: _ClassVar[int]
    alpha: int
    beta: int
    gamma: int
    delta: int
    warm_blocks: int
    cold_blocks: int
    warm_bytes: int
    def __init__(self, alpha: _Optional[int] = ..., beta: _Optional[int] = ..., gamma: _Optional[int] = ..., delta: _Optional[int] = ..., warm_blocks: _Optional[int] = ..., cold_blocks: _Optional[int] = ..., warm_bytes: _Optional[int] = ...) -> None: ...

class DescribeQueueResponse(_message.Message):
    __slots__ = ("queue", "consumers", "storage", "next_consumers_after")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    CONSUMERS_FIELD_NUMBER: _ClassVar[int]
    STORAGE_FIELD_NUMBER: _ClassVar[int]
    NEXT_CONSUMERS_AFTER_FIELD_NUMBER: _ClassVar[int]
    queue: QueueInfo
    consumers: _containers.RepeatedCompositeFieldContainer[ConsumerInfo]
    storage: StorageInfo
    next_consumers_after: int
    def __init__(self, queue: _Optional[_Union[QueueInfo, _Mapping]] = ..., consumers: _Optional[_Iterable[_Union[ConsumerInfo, _Mapping]]] = ..., storage: _Optional[_Union[StorageInfo, _Mapping]] = ..., next_consumers_after: _Optional[int] = ...) -> None: ...

class Policy(_message.Message):
    __slots__ = ("name", "pattern", "priority", "arguments")
    class ArgumentsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _queue_pb2.Value
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_queue_pb2.Value, _Mapping]] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    PATTERN_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    name: str
    pattern: str
    priority: int
    arguments: _containers.MessageMap[str, _queue_pb2.Value]
    def __init__(self, name: _Optional[str] = ..., pattern: _Optional[str] = ..., priority: _Optional[int] = ..., arguments: _Optional[_Mapping[str, _queue_pb2.Value]] = ...) -> None: ...

class SetPolicyRequest(_message.Message):
    __slots__ = ("policy",)
    POLICY_FIELD_NUMBER: _ClassVar[int]
    policy: Policy
    def __init__(self, policy: _Optional[_Union[Policy, _Mapping]] = ...) -> None: ...

class SetPolicyResponse(_message.Message):
    __slots__ = ("changed",)
    CHANGED_FIELD_NUMBER: _ClassVar[int]
    changed: bool
    def __init__(self, changed: bool = ...) -> None: ...

class DeletePolicyRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class DeletePolicyResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListPoliciesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListPoliciesResponse(_message.Message):
    __slots__ = ("policies",)
    POLICIES_FIELD_NUMBER: _ClassVar[int]
    policies: _containers.RepeatedCompositeFieldContainer[Policy]
    def __init__(self, policies: _Optional[_Iterable[_Union[Policy, _Mapping]]] = ...) -> None: ...

class ExchangeInfo(_message.Message):
    __slots__ = ("name", "type", "arguments", "id", "bindings")
    class ArgumentsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _queue_pb2.Value
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_queue_pb2.Value, _Mapping]] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    BINDINGS_FIELD_NUMBER: _ClassVar[int]
    name: str
    type: str
    arguments: _containers.MessageMap[str, _queue_pb2.Value]
    id: int
    bindings: int
    def __init__(self, name: _Optional[str] = ..., type: _Optional[str] = ..., arguments: _Optional[_Mapping[str, _queue_pb2.Value]] = ..., id: _Optional[int] = ..., bindings: _Optional[int] = ...) -> None: ...

class DeclareExchangeRequest(_message.Message):
    __slots__ = ("exchange", "type", "arguments")
    class ArgumentsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _queue_pb2.Value
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_queue_pb2.Value, _Mapping]] = ...) -> None: ...
    EXCHANGE_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    exchange: str
    type: str
    arguments: _containers.MessageMap[str, _queue_pb2.Value]
    def __init__(self, exchange: _Optional[str] = ..., type: _Optional[str] = ..., arguments: _Optional[_Mapping[str, _queue_pb2.Value]] = ...) -> None: ...

class DeclareExchangeResponse(_message.Message):
    __slots__ = ("created",)
    CREATED_FIELD_NUMBER: _ClassVar[int]
    created: bool
    def __init__(self, created: bool = ...) -> None: ...

class DeleteExchangeRequest(_message.Message):
    __slots__ = ("exchange", "id", "if_unused")
    EXCHANGE_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    IF_UNUSED_FIELD_NUMBER: _ClassVar[int]
    exchange: str
    id: int
    if_unused: bool
    def __init__(self, exchange: _Optional[str] = ..., id: _Optional[int] = ..., if_unused: bool = ...) -> None: ...

class DeleteExchangeResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListExchangesRequest(_message.Message):
    __slots__ = ("prefix", "limit", "after")
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    prefix: str
    limit: int
    after: str
    def __init__(self, prefix: _Optional[str] = ..., limit: _Optional[int] = ..., after: _Optional[str] = ...) -> None: ...

class ListExchangesResponse(_message.Message):
    __slots__ = ("exchanges", "next_after")
    EXCHANGES_FIELD_NUMBER: _ClassVar[int]
    NEXT_AFTER_FIELD_NUMBER: _ClassVar[int]
    exchanges: _containers.RepeatedCompositeFieldContainer[ExchangeInfo]
    next_after: str
    def __init__(self, exchanges: _Optional[_Iterable[_Union[ExchangeInfo, _Mapping]]] = ..., next_after: _Optional[str] = ...) -> None: ...

class Binding(_message.Message):
    __slots__ = ("source", "queue", "exchange", "routing_key", "arguments", "id")
    class ArgumentsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _queue_pb2.Value
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_queue_pb2.Value, _Mapping]] = ...) -> None: ...
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    EXCHANGE_FIELD_NUMBER: _ClassVar[int]
    ROUTING_KEY_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    source: str
    queue: str
    exchange: str
    routing_key: str
    arguments: _containers.MessageMap[str, _queue_pb2.Value]
    id: int
    def __init__(self, source: _Optional[str] = ..., queue: _Optional[str] = ..., exchange: _Optional[str] = ..., routing_key: _Optional[str] = ..., arguments: _Optional[_Mapping[str, _queue_pb2.Value]] = ..., id: _Optional[int] = ...) -> None: ...

class AddBindingRequest(_message.Message):
    __slots__ = ("binding",)
    BINDING_FIELD_NUMBER: _ClassVar[int]
    binding: Binding
    def __init__(self, binding: _Optional[_Union[Binding, _Mapping]] = ...) -> None: ...

class AddBindingResponse(_message.Message):
    __slots__ = ("added",)
    ADDED_FIELD_NUMBER: _ClassVar[int]
    added: bool
    def __init__(self, added: bool = ...) -> None: ...

class RemoveBindingRequest(_message.Message):
    __slots__ = ("binding",)
    BINDING_FIELD_NUMBER: _ClassVar[int]
    binding: Binding
    def __init__(self, binding: _Optional[_Union[Binding, _Mapping]] = ...) -> None: ...

class RemoveBindingResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListBindingsRequest(_message.Message):
    __slots__ = ("source", "queue", "exchange", "after")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    EXCHANGE_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    source: str
    queue: str
    exchange: str
    after: int
    def __init__(self, source: _Optional[str] = ..., queue: _Optional[str] = ..., exchange: _Optional[str] = ..., after: _Optional[int] = ...) -> None: ...

class ListBindingsResponse(_message.Message):
    __slots__ = ("bindings", "next_after")
    BINDINGS_FIELD_NUMBER: _ClassVar[int]
    NEXT_AFTER_FIELD_NUMBER: _ClassVar[int]
    bindings: _containers.RepeatedCompositeFieldContainer[Binding]
    next_after: int
    def __init__(self, bindings: _Optional[_Iterable[_Union[Binding, _Mapping]]] = ..., next_after: _Optional[int] = ...) -> None: ...

class ExchangeDefinition(_message.Message):
    __slots__ = ("name", "type", "arguments")
    class ArgumentsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _queue_pb2.Value
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_queue_pb2.Value, _Mapping]] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    name: str
    type: str
    arguments: _containers.MessageMap[str, _queue_pb2.Value]
    def __init__(self, name: _Optional[str] = ..., type: _Optional[str] = ..., arguments: _Optional[_Mapping[str, _queue_pb2.Value]] = ...) -> None: ...

class QueueDefinition(_message.Message):
    __slots__ = ("name", "arguments")
    class ArgumentsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _queue_pb2.Value
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_queue_pb2.Value, _Mapping]] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    name: str
    arguments: _containers.MessageMap[str, _queue_pb2.Value]
    def __init__(self, name: _Optional[str] = ..., arguments: _Optional[_Mapping[str, _queue_pb2.Value]] = ...) -> None: ...

class Definitions(_message.Message):
    __slots__ = ("exchanges", "queues", "bindings", "policies")
    EXCHANGES_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    BINDINGS_FIELD_NUMBER: _ClassVar[int]
    POLICIES_FIELD_NUMBER: _ClassVar[int]
    exchanges: _containers.RepeatedCompositeFieldContainer[ExchangeDefinition]
    queues: _containers.RepeatedCompositeFieldContainer[QueueDefinition]
    bindings: _containers.RepeatedCompositeFieldContainer[Binding]
    policies: _containers.RepeatedCompositeFieldContainer[Policy]
    def __init__(self, exchanges: _Optional[_Iterable[_Union[ExchangeDefinition, _Mapping]]] = ..., queues: _Optional[_Iterable[_Union[QueueDefinition, _Mapping]]] = ..., bindings: _Optional[_Iterable[_Union[Binding, _Mapping]]] = ..., policies: _Optional[_Iterable[_Union[Policy, _Mapping]]] = ...) -> None: ...

class ExportDefinitionsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ExportDefinitionsResponse(_message.Message):
    __slots__ = ("definitions",)
    DEFINITIONS_FIELD_NUMBER: _ClassVar[int]
    definitions: Definitions
    def __init__(self, definitions: _Optional[_Union[Definitions, _Mapping]] = ...) -> None: ...

class ImportDefinitionsRequest(_message.Message):
    __slots__ = ("definitions", "dry_run")
    DEFINITIONS_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    definitions: Definitions
    dry_run: bool
    def __init__(self, definitions: _Optional[_Union[Definitions, _Mapping]] = ..., dry_run: bool = ...) -> None: ...

class DefinitionResult(_message.Message):
    __slots__ = ("outcome", "reason", "text")
    class Outcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        OUTCOME_UNSPECIFIED: _ClassVar[DefinitionResult.Outcome]
        ADDED: _ClassVar[DefinitionResult.Outcome]
        SAME: _ClassVar[DefinitionResult.Outcome]
        DIFFERS: _ClassVar[DefinitionResult.Outcome]
        REFUSED: _ClassVar[DefinitionResult.Outcome]
    OUTCOME_UNSPECIFIED: DefinitionResult.Outcome
    ADDED: DefinitionResult.Outcome
    SAME: DefinitionResult.Outcome
    DIFFERS: DefinitionResult.Outcome
    REFUSED: DefinitionResult.Outcome
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    outcome: DefinitionResult.Outcome
    reason: str
    text: str
    def __init__(self, outcome: _Optional[_Union[DefinitionResult.Outcome, str]] = ..., reason: _Optional[str] = ..., text: _Optional[str] = ...) -> None: ...

class ImportDefinitionsResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[DefinitionResult]
    def __init__(self, results: _Optional[_Iterable[_Union[DefinitionResult, _Mapping]]] = ...) -> None: ...

class TransactionId(_message.Message):
    __slots__ = ("group", "producer", "number")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    group: int
    producer: bytes
    number: int
    def __init__(self, group: _Optional[int] = ..., producer: _Optional[bytes] = ..., number: _Optional[int] = ...) -> None: ...

class TransactionInfo(_message.Message):
    __slots__ = ("id", "state", "since_ms", "deciding_group", "unfinished_groups", "queues", "messages", "bytes")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STATE_UNSPECIFIED: _ClassVar[TransactionInfo.State]
        OPEN: _ClassVar[TransactionInfo.State]
        PREPARED: _ClassVar[TransactionInfo.State]
        COMMITTED: _ClassVar[TransactionInfo.State]
    STATE_UNSPECIFIED: TransactionInfo.State
    OPEN: TransactionInfo.State
    PREPARED: TransactionInfo.State
    COMMITTED: TransactionInfo.State
    ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SINCE_MS_FIELD_NUMBER: _ClassVar[int]
    DECIDING_GROUP_FIELD_NUMBER: _ClassVar[int]
    UNFINISHED_GROUPS_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    id: TransactionId
    state: TransactionInfo.State
    since_ms: int
    deciding_group: int
    unfinished_groups: _containers.RepeatedScalarFieldContainer[int]
    queues: _containers.RepeatedScalarFieldContainer[str]
    messages: int
    bytes: int
    def __init__(self, id: _Optional[_Union[TransactionId, _Mapping]] = ..., state: _Optional[_Union[TransactionInfo.State, str]] = ..., since_ms: _Optional[int] = ..., deciding_group: _Optional[int] = ..., unfinished_groups: _Optional[_Iterable[int]] = ..., queues: _Optional[_Iterable[str]] = ..., messages: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class ListTransactionsRequest(_message.Message):
    __slots__ = ("group", "after")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    group: int
    after: TransactionId
    def __init__(self, group: _Optional[int] = ..., after: _Optional[_Union[TransactionId, _Mapping]] = ...) -> None: ...

class ListTransactionsResponse(_message.Message):
    __slots__ = ("transactions", "has_more")
    TRANSACTIONS_FIELD_NUMBER: _ClassVar[int]
    HAS_MORE_FIELD_NUMBER: _ClassVar[int]
    transactions: _containers.RepeatedCompositeFieldContainer[TransactionInfo]
    has_more: bool
    def __init__(self, transactions: _Optional[_Iterable[_Union[TransactionInfo, _Mapping]]] = ..., has_more: bool = ...) -> None: ...

class ResolveTransactionRequest(_message.Message):
    __slots__ = ("id", "outcome")
    class Outcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        ASK_ONLY: _ClassVar[ResolveTransactionRequest.Outcome]
        COMMIT: _ClassVar[ResolveTransactionRequest.Outcome]
        ROLLBACK: _ClassVar[ResolveTransactionRequest.Outcome]
    ASK_ONLY: ResolveTransactionRequest.Outcome
    COMMIT: ResolveTransactionRequest.Outcome
    ROLLBACK: ResolveTransactionRequest.Outcome
    ID_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    id: TransactionId
    outcome: ResolveTransactionRequest.Outcome
    def __init__(self, id: _Optional[_Union[TransactionId, _Mapping]] = ..., outcome: _Optional[_Union[ResolveTransactionRequest.Outcome, str]] = ...) -> None: ...

class ResolveTransactionResponse(_message.Message):
    __slots__ = ("committed", "by_hand")
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    BY_HAND_FIELD_NUMBER: _ClassVar[int]
    committed: bool
    by_hand: bool
    def __init__(self, committed: bool = ..., by_hand: bool = ...) -> None: ...

class ClusterStatusRequest(_message.Message):
    __slots__ = ("with_state_hash",)
    WITH_STATE_HASH_FIELD_NUMBER: _ClassVar[int]
    with_state_hash: bool
    def __init__(self, with_state_hash: bool = ...) -> None: ...

class MemberInfo(_message.Message):
    __slots__ = ("name", "client_address", "peer_address", "reachable", "boot", "id", "incarnation", "drained", "joining", "replaces", "known_version", "disk")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PEER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    REACHABLE_FIELD_NUMBER: _ClassVar[int]
    BOOT_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    DRAINED_FIELD_NUMBER: _ClassVar[int]
    JOINING_FIELD_NUMBER: _ClassVar[int]
    REPLACES_FIELD_NUMBER: _ClassVar[int]
    KNOWN_VERSION_FIELD_NUMBER: _ClassVar[int]
    DISK_FIELD_NUMBER: _ClassVar[int]
    name: str
    client_address: str
    peer_address: str
    reachable: bool
    boot: int
    id: str
    incarnation: str
    drained: bool
    joining: bool
    replaces: str
    known_version: int
    disk: Disk
    def __init__(self, name: _Optional[str] = ..., client_address: _Optional[str] = ..., peer_address: _Optional[str] = ..., reachable: bool = ..., boot: _Optional[int] = ..., id: _Optional[str] = ..., incarnation: _Optional[str] = ..., drained: bool = ..., joining: bool = ..., replaces: _Optional[str] = ..., known_version: _Optional[int] = ..., disk: _Optional[_Union[Disk, _Mapping]] = ...) -> None: ...

class Disk(_message.Message):
    __slots__ = ("free_bytes", "limit_bytes", "low", "full", "slow", "sync_p99_us")
    FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    LIMIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    LOW_FIELD_NUMBER: _ClassVar[int]
    FULL_FIELD_NUMBER: _ClassVar[int]
    SLOW_FIELD_NUMBER: _ClassVar[int]
    SYNC_P99_US_FIELD_NUMBER: _ClassVar[int]
    free_bytes: int
    limit_bytes: int
    low: bool
    full: bool
    slow: bool
    sync_p99_us: int
    def __init__(self, free_bytes: _Optional[int] = ..., limit_bytes: _Optional[int] = ..., low: bool = ..., full: bool = ..., slow: bool = ..., sync_p99_us: _Optional[int] = ...) -> None: ...

class MemberProgress(_message.Message):
    __slots__ = ("name", "match_index")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MATCH_INDEX_FIELD_NUMBER: _ClassVar[int]
    name: str
    match_index: int
    def __init__(self, name: _Optional[str] = ..., match_index: _Optional[int] = ...) -> None: ...

class GroupInfo(_message.Message):
    __slots__ = ("group", "leader", "term", "commit_index", "applied_index", "members", "state_hash", "learners", "settled", "version", "last_index", "progress", "repaired", "unreadable", "fetching", "disputed", "quarantined")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    COMMIT_INDEX_FIELD_NUMBER: _ClassVar[int]
    APPLIED_INDEX_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    STATE_HASH_FIELD_NUMBER: _ClassVar[int]
    LEARNERS_FIELD_NUMBER: _ClassVar[int]
    SETTLED_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    LAST_INDEX_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    REPAIRED_FIELD_NUMBER: _ClassVar[int]
    UNREADABLE_FIELD_NUMBER: _ClassVar[int]
    FETCHING_FIELD_NUMBER: _ClassVar[int]
    DISPUTED_FIELD_NUMBER: _ClassVar[int]
    QUARANTINED_FIELD_NUMBER: _ClassVar[int]
    group: int
    leader: str
    term: int
    commit_index: int
    applied_index: int
    members: _containers.RepeatedScalarFieldContainer[str]
    state_hash: int
    learners: _containers.RepeatedScalarFieldContainer[str]
    settled: bool
    version: int
    last_index: int
    progress: _containers.RepeatedCompositeFieldContainer[MemberProgress]
    repaired: int
    unreadable: int
    fetching: int
    disputed: str
    quarantined: bool
    def __init__(self, group: _Optional[int] = ..., leader: _Optional[str] = ..., term: _Optional[int] = ..., commit_index: _Optional[int] = ..., applied_index: _Optional[int] = ..., members: _Optional[_Iterable[str]] = ..., state_hash: _Optional[int] = ..., learners: _Optional[_Iterable[str]] = ..., settled: bool = ..., version: _Optional[int] = ..., last_index: _Optional[int] = ..., progress: _Optional[_Iterable[_Union[MemberProgress, _Mapping]]] = ..., repaired: _Optional[int] = ..., unreadable: _Optional[int] = ..., fetching: _Optional[int] = ..., disputed: _Optional[str] = ..., quarantined: bool = ...) -> None: ...

class ClusterStatusResponse(_message.Message):
    __slots__ = ("answering_node", "members", "groups", "resident_bytes", "standing", "own", "skipped_entries", "lease_times", "lease_times_settled")
    ANSWERING_NODE_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    RESIDENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    STANDING_FIELD_NUMBER: _ClassVar[int]
    OWN_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_ENTRIES_FIELD_NUMBER: _ClassVar[int]
    LEASE_TIMES_FIELD_NUMBER: _ClassVar[int]
    LEASE_TIMES_SETTLED_FIELD_NUMBER: _ClassVar[int]
    answering_node: str
    members: _containers.RepeatedCompositeFieldContainer[MemberInfo]
    groups: _containers.RepeatedCompositeFieldContainer[GroupInfo]
    resident_bytes: int
    standing: str
    own: MemberInfo
    skipped_entries: _containers.RepeatedScalarFieldContainer[str]
    lease_times: LeaseTimes
    lease_times_settled: bool
    def __init__(self, answering_node: _Optional[str] = ..., members: _Optional[_Iterable[_Union[MemberInfo, _Mapping]]] = ..., groups: _Optional[_Iterable[_Union[GroupInfo, _Mapping]]] = ..., resident_bytes: _Optional[int] = ..., standing: _Optional[str] = ..., own: _Optional[_Union[MemberInfo, _Mapping]] = ..., skipped_entries: _Optional[_Iterable[str]] = ..., lease_times: _Optional[_Union[LeaseTimes, _Mapping]] = ..., lease_times_settled: bool = ...) -> None: ...

class LeaseTimes(_message.Message):
    __slots__ = ("lease_ms", "leader_fallback_ms")
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    LEADER_FALLBACK_MS_FIELD_NUMBER: _ClassVar[int]
    lease_ms: int
    leader_fallback_ms: int
    def __init__(self, lease_ms: _Optional[int] = ..., leader_fallback_ms: _Optional[int] = ...) -> None: ...

class SetLeaseTimesRequest(_message.Message):
    __slots__ = ("lease_times",)
    LEASE_TIMES_FIELD_NUMBER: _ClassVar[int]
    lease_times: LeaseTimes
    def __init__(self, lease_times: _Optional[_Union[LeaseTimes, _Mapping]] = ...) -> None: ...

class SetLeaseTimesResponse(_message.Message):
    __slots__ = ("changed",)
    CHANGED_FIELD_NUMBER: _ClassVar[int]
    changed: bool
    def __init__(self, changed: bool = ...) -> None: ...

class AddMemberRequest(_message.Message):
    __slots__ = ("member", "replace")
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    REPLACE_FIELD_NUMBER: _ClassVar[int]
    member: MemberInfo
    replace: bool
    def __init__(self, member: _Optional[_Union[MemberInfo, _Mapping]] = ..., replace: bool = ...) -> None: ...

class AddMemberResponse(_message.Message):
    __slots__ = ("added",)
    ADDED_FIELD_NUMBER: _ClassVar[int]
    added: bool
    def __init__(self, added: bool = ...) -> None: ...

class RemoveMemberRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class RemoveMemberResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DrainMemberRequest(_message.Message):
    __slots__ = ("name", "drained")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DRAINED_FIELD_NUMBER: _ClassVar[int]
    name: str
    drained: bool
    def __init__(self, name: _Optional[str] = ..., drained: bool = ...) -> None: ...

class DrainMemberResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TransferLeadershipRequest(_message.Message):
    __slots__ = ("group", "to")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    group: int
    to: str
    def __init__(self, group: _Optional[int] = ..., to: _Optional[str] = ...) -> None: ...

class TransferLeadershipResponse(_message.Message):
    __slots__ = ("leader",)
    LEADER_FIELD_NUMBER: _ClassVar[int]
    leader: str
    def __init__(self, leader: _Optional[str] = ...) -> None: ...

class RebalanceLeadersRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RebalanceLeadersResponse(_message.Message):
    __slots__ = ("moved",)
    MOVED_FIELD_NUMBER: _ClassVar[int]
    moved: _containers.RepeatedCompositeFieldContainer[GroupInfo]
    def __init__(self, moved: _Optional[_Iterable[_Union[GroupInfo, _Mapping]]] = ...) -> None: ...
