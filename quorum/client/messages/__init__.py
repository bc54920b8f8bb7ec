"""What is sent and what arrives: batches, deliveries, and the requests of a session's stream."""
