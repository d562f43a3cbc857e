"""Sluice, a block-node publish gateway: what is imported and installed as `sluice`.

The packages stand beside this folder and are linked into it: `gateway/race/arbiter.py` is imported as
`sluice.gateway.race.arbiter`.
"""
