"""Selectors and filters on messages: pure functions of their arguments, no I/O, no clock, no state.

Read in this order:

- `expression`: the tree that every other module works on.
- `arithmetic` and `evaluate`: what the tree means.
- `jms` and `properties`: how text and AMQP maps become trees.
- `canonical`: how a tree is encoded.
- `columns`: how the fields of a whole batch are encoded.
- `vectorised` and `lines`: an expression over many messages at once.

This module imports nothing, so that a state machine that only evaluates never loads the parser.
"""
