"""Makes `google_tiny/`: a release folder of the original BERT, and what that model computes.

Two oracles, neither of them ours. The checkpoint is written by the original TensorFlow code (the wheel
`bert-tensorflow` carries `modeling.py`, `optimization.py` and `run_pretraining.py` as published), with its optimizer's
slots and step counter, every variable random. The numbers are computed twice: by that code from its own variables,
and by the converter and the model of `transformers` 4 from the written files.

Run once, by hand, in an environment of its own; the suite needs only the files. Last run with Python 3.11,
tensorflow-cpu 2.21.0, tf-keras 2.21.0, tf-slim 1.1.0, bert-tensorflow 1.0.4 (installed without its dependencies),
transformers 4.49.0, torch 2.13.0 and numpy 2.4.6:

    python tests/interop/make_google_tiny.py
"""

import json
import os
import sys
import types
from pathlib import Path

# the published code calls `tf.layers`, which newer TensorFlow keeps in tf-keras only
os.environ["TF_USE_LEGACY_KERAS"] = "1"
os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"

import numpy as np
import tensorflow.compat.v1 as tf
import tf_slim
import torch
import transformers

FOLDER = Path(__file__).parent / "google_tiny"
CONFIG = {
    "attention_probs_dropout_prob": 0.1,
    "directionality": "bidi",
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 16,
    "initializer_range": 0.02,
    "intermediate_size": 32,
    "max_position_embeddings": 24,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "pooler_fc_size": 16,
    "pooler_num_attention_heads": 2,
    "pooler_num_fc_layers": 3,
    "pooler_size_per_head": 8,
    "pooler_type": "first_token_transform",
    "type_vocab_size": 2,
    "vocab_size": 60,
}
"""The fields of the published `bert_config.json`, the ones that describe nothing included."""

SPECIAL = ["[PAD]", "[unused1]", "[unused2]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PIECES = [*SPECIAL, *"!,.?", *map(chr, range(97, 123)), *(f"##{chr(code)}" for code in range(97, 120))]
SLOTS = ("adam_m", "adam_v")


def draw_inputs() -> dict[str, np.ndarray]:
    """Two rows of 12 ids, the second padded from 9, with two segments and three masked positions each."""
    rng = np.random.default_rng(1)
    ids = rng.integers(7, 60, (2, 12))
    ids[:, 0], ids[0, 11], ids[1, 8], ids[:, 5], ids[1, 9:] = 4, 5, 5, 5, 0
    mask = (np.arange(12) < np.array([[12], [9]])).astype(np.int64)
    types_ = (np.arange(12) > 5).astype(np.int64) * mask
    return {
        "input_ids": ids,
        "attention_mask": mask,
        "token_type_ids": types_,
        "masked_positions": np.array([[1, 3, 7], [2, 4, 6]]),
    }


def run_google(inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Builds the published graph, fills it with random numbers, saves it in one part and in two, and runs it."""
    # the published code imports one function of `tensorflow.contrib`, which lives on as tf-slim
    contrib = types.ModuleType("tensorflow.contrib")
    contrib.layers = types.SimpleNamespace(layer_norm=tf_slim.layers.layer_norm)
    sys.modules["tensorflow.contrib"] = contrib
    from bert import modeling, optimization, run_pretraining

    config = modeling.BertConfig.from_dict(CONFIG)
    turn = iter(range(10**6))

    def spread(operation: tf.Operation) -> str:
        """Places the variables in turn on two devices, since a sharded saver writes one part a device."""
        return f"/job:localhost/replica:0/task:0/device:CPU:{next(turn) % 2 if 'Variable' in operation.type else 0}"

    with tf.Graph().as_default(), tf.device(spread):
        feeds = {name: tf.constant(value, tf.int32) for name, value in inputs.items()}
        model = modeling.BertModel(config, False, feeds["input_ids"], feeds["attention_mask"], feeds["token_type_ids"])
        labels = tf.zeros_like(feeds["masked_positions"])
        mlm_loss, _, mlm_log_probs = run_pretraining.get_masked_lm_output(
            config,
            model.get_sequence_output(),
            model.get_embedding_table(),
            feeds["masked_positions"],
            labels,
            tf.ones_like(labels, tf.float32),
        )
        nsp_loss, _, nsp_log_probs = run_pretraining.get_next_sentence_output(
            config, model.get_pooled_output(), tf.zeros([2, 1], tf.int32)
        )
        tf.train.get_or_create_global_step()
        outputs = {
            "hidden_states": model.get_sequence_output(),
            "pooled": model.get_pooled_output(),
            "mlm_log_probs": mlm_log_probs,
            "nsp_log_probs": nsp_log_probs,
        }
        optimization.create_optimizer(mlm_loss + nsp_loss, 1e-4, 10, 2, use_tpu=False)
        with tf.Session(config=tf.ConfigProto(device_count={"CPU": 2})) as session:
            rng = np.random.default_rng(0)
            for variable in tf.global_variables():
                shape = variable.shape.as_list()
                value = rng.normal(float("gamma" in variable.name), 0.2, shape) if shape else 1000
                variable.load(value, session)
            tf.train.Saver().save(session, str(FOLDER / "bert_model.ckpt"), write_meta_graph=False)
            weights = [v for v in tf.global_variables() if not v.op.name.endswith(SLOTS)]
            parts = FOLDER / "two_parts"
            parts.mkdir(exist_ok=True)
            tf.train.Saver(weights, sharded=True).save(session, str(parts / "bert_model.ckpt"), write_meta_graph=False)
            return {f"google_{name}": value for name, value in session.run(outputs).items()}


@torch.no_grad()
def run_transformers(inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Reads the written files with the converter of `transformers` 4 and runs its model."""
    config = transformers.BertConfig(**CONFIG)
    model = transformers.BertForPreTraining(config)
    transformers.load_tf_weights_in_bert(model, config, str(FOLDER / "bert_model.ckpt"))
    # `bert` is what the heads of the converter's model read; tie again, since the converter replaces the tensors
    model.tie_weights()
    names = ("input_ids", "attention_mask", "token_type_ids")
    output = model.eval()(**{name: torch.from_numpy(inputs[name]) for name in names}, output_hidden_states=True)
    return {
        "transformers_hidden_states": output.hidden_states[-1].numpy(),
        "transformers_mlm_logits": output.prediction_logits.numpy(),
        "transformers_nsp_logits": output.seq_relationship_logits.numpy(),
    }


def write_dtypes() -> None:
    """Saves one row of numbers in every float type the reader takes, and one integer it does not."""
    values = [0.0, -1.0, 1.5, 3.140625, -65504.0, 2.0**-14]
    types_ = (tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.int64)
    with tf.Graph().as_default(), tf.Session() as session:
        variables = [tf.get_variable(t.name, initializer=tf.cast(tf.constant(values), t)) for t in types_]
        session.run(tf.global_variables_initializer())
        tf.train.Saver(variables).save(session, str(FOLDER / "dtypes" / "dtypes.ckpt"), write_meta_graph=False)


def main() -> None:
    """Writes everything."""
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / "bert_config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")
    (FOLDER / "vocab.txt").write_text("".join(f"{piece}\n" for piece in PIECES))
    assert len(PIECES) == CONFIG["vocab_size"]
    inputs = draw_inputs()
    google = run_google(inputs)
    write_dtypes()
    np.savez_compressed(FOLDER / "expected.npz", **inputs, **google, **run_transformers(inputs))
    for listing in FOLDER.rglob("checkpoint"):
        listing.unlink()


if __name__ == "__main__":
    main()
