"""Which processor is taken to be good at what."""

import pytest
import torch

from bertsmith.kernels import processor
from bertsmith.kernels.layers import best_compute_dtype, native_precision


@pytest.mark.parametrize(
    ("capabilities", "intel", "faster"),
    [
        ({"avx512_bf16": True, "amx_bf16": False}, False, True),
        ({"avx512_bf16": True, "amx_bf16": False}, True, False),
        ({"avx512_bf16": True, "amx_bf16": True}, True, True),
        ({"avx512_f": True}, False, False),
        ({}, True, False),
    ],
)
def test_bf16_is_taken_where_it_is_faster(capabilities, intel, faster, monkeypatch):
    """AVX512-BF16 alone is half as fast as float32 on Intel's processors, and twice as fast on AMD's."""
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    monkeypatch.setattr(processor, "is_intel", lambda: intel)
    assert best_compute_dtype("cpu") == (torch.bfloat16 if faster else torch.float32)
    assert native_precision("cpu") == ("bf16" if faster else "float32")
