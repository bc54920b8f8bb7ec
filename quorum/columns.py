"""Names of columns that the bulk calls of the service and the Spark data source have in common."""

TEXTS = (
    "message_id",
    "correlation_id",
    "reply_to",
    "content_type",
    "subject",
    "group_id",
    "content_encoding",
    "to",
    "user_id",
    "reply_to_group_id",
)
"""Columns that hold the message property of the same name."""
