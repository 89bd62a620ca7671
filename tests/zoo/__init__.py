"""Every causal language model of transformers, tiny and random: compiled, run, and compared with the oracle.

``make zoo`` measures all of them and writes ``docs/coverage.md``.
"""
