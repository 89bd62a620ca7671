"""What every test has: one thread for PyTorch, the package found, and the modules beside this file importable."""

import sys
from pathlib import Path

import torch

# found before this folder, which has one of the same name, is searched
import snapcc  # noqa: F401

sys.path.append(str(Path(__file__).parent))
torch.set_num_threads(1)
