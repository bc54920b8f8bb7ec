"""Selectors and filters on messages: pure functions of their arguments, no I/O, no clock, no state.

Read `expression` first (the tree every other module speaks), then `arithmetic` and `evaluate` (what it
means), `jms` and `properties` (how text and AMQP maps become trees), `canonical` (how a tree travels),
`columns` (how the fields of a whole batch travel), `vectorised` and `lines` (an expression over many messages
at once). Nothing is imported here, so that a state machine that evaluates never loads the parser.
"""
