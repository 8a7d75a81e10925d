"""Units as bytes and tables: files, checksums, hashes, digests, shards and schemas."""
