"""The publish gateway: blocks in from racing publishers over gRPC, verified, committed to the stream file."""

__version__ = "0.2.0"
