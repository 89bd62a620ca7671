"""The compiler: the kv dialect, the analyses and the passes from torch to linalg."""
