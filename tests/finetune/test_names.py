"""File names that are not UTF-8 are read, trained from and reported, never an end after the training."""

import os

import pytest

from bertsmith.errors import BertsmithError
from bertsmith.finetune.job import finetune

ODD = os.fsdecode(b"gut\xff")


def test_a_file_with_a_name_that_is_not_utf8_is_learned_from(tiny_model, tmp_path):
    try:
        (tmp_path / ODD).mkdir()
    except OSError:
        pytest.skip("the file system takes UTF-8 names only")
    train = tmp_path / ODD / f"{ODD}.tsv"
    train.write_text("the man\tgood\na book\tbad\n" * 4)
    found = finetune("classify", tiny_model, tmp_path / "run", train=train, dev=train, epochs=1)
    assert "gut\ufffd.tsv" in (found.model_folder / "README.md").read_text(encoding="utf-8")
    # 权重的库打不开这样的路径：训练之前就拒绝，什么也没有留下
    for model, out in ((tiny_model, tmp_path / f"{ODD}-run"), (tmp_path / ODD, tmp_path / "b")):
        with pytest.raises(BertsmithError, match="gut.*: the name is not UTF-8"):
            finetune("classify", model, out, train=train, dev=train, epochs=1)
        assert not out.exists()
