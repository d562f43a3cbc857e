"""Protobuf and gRPC stubs, generated from `proto/` by `python -m sluice.gateway.api` (`make proto`).

Only this file, `__main__.py` and README.md are written by hand.
"""
