"""Random steps for a group machine and its model, as strategies of hypothesis: each draws a description, which
`against_model.py` makes an operation of."""

from __future__ import annotations

from hypothesis import strategies as st

TEXTS = ("", "colour = 'red'", "size > 2", "colour IS NULL", "colour <> 'red' OR size < 2", "JMSPriority = 7")
TAGS = ("a", "b", "c")

PRODUCERS = st.integers(1, 4)
QUEUES = st.sampled_from((1, 1, 1, 2, 3, 4))
PLAIN = (2, 4)
"""The queues that keep no fields."""
PASSED_MS = st.sampled_from((0, 0, 1, 5, 30, 100))
ROWS = st.fixed_dictionaries(
    {},
    optional={
        "application-properties.colour": st.sampled_from(("red", "green", "as green as grass", 3)),
        "application-properties.size": st.sampled_from((1, 2, 3, 2.5, True)),
        "header.priority": st.sampled_from((4, 7)),
    },
)
TTLS = st.sampled_from((-1, -1, 0, 1, 20, 60))
SIZES = st.sampled_from((100, 100, 0, 1, 70, 333))
"""of messages of queue 2; those of queues that filter have 100 bytes, because the model reads them for as many"""
PRIORITY = st.sampled_from((0, 0, 1, 2, 3, 200))
PRIORITIES = st.just(()) | PRIORITY.map(lambda each: (each,)) | st.lists(PRIORITY, min_size=12, max_size=12)
DUE = st.sampled_from((0, 0, 0, -1, -5, -20, -90, 1, 30, 200))
"""above 0: a time from now"""
DUES = st.just(()) | DUE.map(lambda each: (each,)) | st.lists(DUE, min_size=12, max_size=12)

KEY = st.sampled_from((0, 1, 1, 2, 3))
KEYS = st.just(()) | KEY.map(lambda each: (each,)) | st.lists(KEY, min_size=12, max_size=12)
"""of message groups"""

IMMEDIATE = st.sampled_from((False, False, False, True))
PUBLISH = st.fixed_dictionaries(
    {
        "what": st.just("publish"),
        "who": PRODUCERS,
        "queue": QUEUES,
        "rows": st.lists(ROWS, min_size=1, max_size=12),
        "ttl": TTLS,
        "ttls": st.none() | st.lists(TTLS, min_size=12, max_size=12),
        "priorities": PRIORITIES,
        "dues": DUES,
        "keys": KEYS,
        "again": st.sampled_from((0, 0, 0, 0, 1, 5, 12)),
        "skip": st.sampled_from((0, 0, 0, 2, 4)),
        "behind": st.integers(0, 20),
        "independent": st.booleans(),
        "immediate": IMMEDIATE,
        "size": SIZES,
    }
)
SINGLES = st.fixed_dictionaries(
    {
        "what": st.just("singles"),
        "who": PRODUCERS,
        "queue": QUEUES,
        "count": st.integers(1, 4),
        "ttl": TTLS,
        "priority": PRIORITY,
        "due": DUE,
        "key": KEY,
        "immediate": IMMEDIATE,
    }
)
ROUTED = st.fixed_dictionaries(
    {
        "what": st.just("routed"),
        "who": PRODUCERS,
        "rows": st.lists(ROWS, min_size=12, max_size=12),
        "routes": st.lists(
            st.sampled_from(((1,), (1,), (2,), (3,), (1, 2), (1, 3), (1, 2, 3), (1, 4), (1, 5))),
            min_size=1,
            max_size=12,
        ),
        "gaps": st.lists(st.sampled_from((0, 0, 0, 1, 2)), min_size=12, max_size=12),
        "ttl": TTLS,
        "ttls": st.none() | st.lists(TTLS, min_size=12, max_size=12),
        "priorities": PRIORITIES,
        "dues": DUES,
        "keys": KEYS,
        "again": st.sampled_from((0, 0, 0, 0, 1, 5, 12)),
        "behind": st.integers(0, 20),
        "independent": st.booleans(),
        "immediate": IMMEDIATE,
    }
)
CONSUME = st.fixed_dictionaries(
    {
        "what": st.sampled_from(("attach", "attach", "credit", "drain", "cancel", "get", "get_settled")),
        "who": PRODUCERS,
        "queue": QUEUES,
        "tag": st.sampled_from(TAGS),
        "text": st.sampled_from(TEXTS),
        "credit": st.sampled_from((0, 1, 2, 5, 30, 1000)),
        "requeue": st.booleans(),
        "priority": st.sampled_from((0, 0, 0, 1, 1, -1, 10, 11)),
    }
)
ATTACH = CONSUME.map(lambda step: step | {"what": "attach"})
ANSWER = st.fixed_dictionaries(
    {
        "what": st.sampled_from(("settle", "settle", "return", "discard", "fail", "undeliverable", "wrong")),
        "who": PRODUCERS,
        "queue": QUEUES,
        "pick": st.integers(0, 7),
        "first": st.integers(-2, 20),
        "width": st.integers(0, 12),
        "more": st.booleans(),
        "credit": st.sampled_from((0, 0, 3, 30)),
    }
)
STAGE = st.fixed_dictionaries(
    {
        "what": st.just("stage"),
        "who": PRODUCERS,
        "queue": QUEUES,
        "writer": st.sampled_from(("s", "s", "t", "u")),
        "batch": st.sampled_from((1, 1, 1, 2, 0, -1)),
        "part": st.integers(0, 3),
        "chunk": st.sampled_from((0, 0, 0, 0, 0, -1, 1)),
        "chunks": st.lists(st.lists(ROWS, min_size=1, max_size=10), min_size=1, max_size=3),
        "ttl": TTLS,
        "ttls": st.none() | st.lists(TTLS, min_size=10, max_size=10),
        "priorities": PRIORITIES,
        "keys": KEYS,
        "publish": st.sampled_from((False, False, True)),
        "size": SIZES,
    }
)
STAGED = st.fixed_dictionaries(
    {
        "what": st.sampled_from(("publish_staged", "publish_staged", "publish_staged", "discard_staged")),
        "who": PRODUCERS,
        "queue": QUEUES,
        "writer": st.sampled_from(("s", "s", "t", "u")),
        "batch": st.sampled_from((1, 1, 1, 1, 2, 0, -1)),
        "order": st.permutations(range(4)),
        "wrong": st.sampled_from(("", "", "", "", "", "short", "missing", "left_out", "empty")),
        "staged_to": st.sampled_from((0, 0, 1, 1, 2, 3, 5)),
        "forget": st.booleans(),
    }
)
TRANSACTION = st.fixed_dictionaries(
    {
        "what": st.just("transaction"),
        "who": PRODUCERS,
        "number": st.sampled_from(
            ("same", "same", "same", "same", "new", "new", "new", "far", "old", "zero")
        ),
        "parts": st.lists(PUBLISH | ROUTED | ANSWER | ANSWER, max_size=3),
        "end": st.sampled_from(
            ("", "", "", "commit", "commit", "commit", "twice", "rollback", "rollback_twice")
        ),
        "wrong": st.sampled_from((False, False, False, False, False, True)),
    }
)
NUMBERING = st.fixed_dictionaries({"what": st.sampled_from(("repeat", "gap", "stale")), "who": PRODUCERS})
ADMIN = st.fixed_dictionaries(
    {
        "what": st.sampled_from(
            (
                "purge",
                "config",
                "configured",
                "delete",
                "create",
                "use",
                "wake",
                "wake",
                "claim",
                "settle_dead",
            )
        ),
        "queue": QUEUES,
        "spared": st.sampled_from((None, None, 0, 1, 5, 40)),
        "max_length": st.sampled_from((-1, -1, 3, 20)),
        "max_length_bytes": st.sampled_from((-1, -1, 250, 1500)),
        "max_consumers": st.sampled_from((-1, -1, 1, 3)),
        "expires": st.sampled_from((-1, -1, -1, 40, 150)),
        "overflow": st.sampled_from(("drop_head", "reject_publish")),
        "strategy": st.sampled_from(("none", "at_least_once", "at_most_once")),
        "begins": st.booleans(),
        "behind": st.integers(-3, 8),
        "later": st.sampled_from((1, 1, 1, 1, 0, 2)),
        "dead_only": st.sampled_from((False, False, True)),
        "forwarded": st.integers(0, 6),
        "ttl": st.sampled_from((-1, -1, 40)),
        "limit": st.sampled_from((-1, 0, 1, 2)),
        "timeout": st.sampled_from((-1, 0, 20, 60, 200)),
        "retry": st.sampled_from(((-1, -1), (-1, 5), (1, -1), (20, -1), (20, 30), (20, 5))),
        "fields": st.sampled_from((("*", "header.priority"), ("*", "header.priority"), ("header.priority",))),
    }
)
SESSIONS = st.fixed_dictionaries(
    {
        "what": st.sampled_from(("epoch", "epoch", "close", "node_down", "again")),
        "clean": st.booleans(),
        "who": PRODUCERS,
        "node": st.integers(1, 2),
        "heard": st.sampled_from((0, 0, 50, 200)),  # how long ago the session was opened
    }
)
ENTRY = st.lists(
    PUBLISH
    | PUBLISH
    | SINGLES
    | ROUTED
    | CONSUME
    | ANSWER
    | ANSWER
    | NUMBERING
    | STAGE
    | STAGED
    | TRANSACTION,
    min_size=1,
    max_size=5,
)
