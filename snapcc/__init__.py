"""snapcc: PyTorch decoders compiled to a fixed number of KV cache slots."""
