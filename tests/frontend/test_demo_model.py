"""The demonstration's model folder, from the package that ships the weights."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
import transformers
from safetensors import safe_open

DEMO = Path(__file__).parents[2] / "demo"


@pytest.fixture(scope="module")
def demo() -> ModuleType:
    spec = importlib.util.spec_from_file_location("demo_smollm2", DEMO / "smollm2.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_rows_are_put_in_the_order_of_a_half_split_rotation(demo: ModuleType) -> None:
    pairs = np.arange(8)[:, None] * np.ones((1, 3), dtype=np.int64)
    assert demo.half_split_rows(pairs, 2)[:, 0].tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


def test_the_folder_is_a_model_with_its_tokenizer(
    demo: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "smollm2"
    monkeypatch.setattr(sys, "argv", ["smollm2.py", str(folder), "--dtype", "bf16"])
    assert demo.main() == 0
    assert [p.name for p in tmp_path.iterdir()] == ["smollm2"]
    assert "is complete" in capsys.readouterr().out
    config = transformers.AutoConfig.from_pretrained(folder)
    assert (config.architectures, config.dtype) == (["LlamaForCausalLM"], torch.bfloat16)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    wanted = {name: tuple(p.shape) for name, p in model.named_parameters()}
    with safe_open(folder / "model.safetensors", "pt") as file:
        assert {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()} == wanted  # noqa: SIM118
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    prompt = (DEMO / "prompt.txt").read_text()
    ids = tokenizer(prompt).input_ids
    assert len(ids) > 1_500
    assert tokenizer.decode(ids) == prompt
    chat = tokenizer.apply_chat_template([{"role": "user", "content": "12 + 30?"}], tokenize=False)
    assert chat.endswith("<|im_start|>user\n12 + 30?<|im_end|>\n")
    assert tokenizer("<|im_end|>").input_ids == [2]


def test_a_folder_of_something_else_is_left_alone(demo: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "letters.txt").write_text("mine")
    with pytest.raises(SystemExit, match="is there and holds no model"):
        demo.write(tmp_path, "f32")
    assert (tmp_path / "letters.txt").read_text() == "mine"
