"""Questions about queues. An answer changes nothing that is replicated."""
