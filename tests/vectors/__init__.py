"""Golden vectors of the formats: small files with the bytes of blocks, proofs, a stream and TCP commands."""
