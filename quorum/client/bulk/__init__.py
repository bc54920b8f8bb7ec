"""Many messages at a time, as Arrow record batches. The public name is `quorum.bulk`."""
