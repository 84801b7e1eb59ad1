"""What looks into a model does so on the device that was chosen."""

import pytest
import torch

from bertsmith_school.looking import probes
from bertsmith_school.looking.maps import load_for_maps, maps_of


def test_model_and_batch_meet_on_the_device(tiny_model, monkeypatch):
    # a device that holds nothing: only copying the answer back can fail, and nothing before it
    monkeypatch.setattr("bertsmith_school.looking.maps.best_device", lambda: torch.device("meta"))
    monkeypatch.setattr(probes, "best_device", lambda: torch.device("meta"))
    model, tokenizer = load_for_maps(tiny_model)
    with pytest.raises(NotImplementedError, match="Cannot copy out of meta tensor"):
        maps_of(model, tokenizer, "the man reads")
    with pytest.raises(NotImplementedError, match="Cannot copy out of meta tensor"):
        probes.probe(tiny_model)
