"""BERT in forty lines of plain PyTorch: embedding, blocks, pooler and masked-LM head (Devlin et al. 2019, §3).

    python examples/bert_in_forty_lines.py [FOLDER] ["the man reads the [MASK]"]

It reads the weights, by their published names, of a folder with a masked-LM head in 16 or 32 bits, as `bertsmith
pretrain` writes it or the Hub holds it; without FOLDER those of the bundled village model. One sequence at a time, so
that there is no padding and no mask to think of; GELU in its exact form, and no dropout, as when a trained model is
used. A test compares every state with bertsmith's own.
Letters: S tokens, H hidden size, A heads of width D = H/A, V pieces.
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import gelu, layer_norm

from bertsmith.model.folder import modern_spelling
from bertsmith.tinyworld import trained_model
from bertsmith.tokenizer import load_tokenizer


class Bert:
    """The network of the paper."""

    def __init__(self, folder: Path) -> None:
        self.config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        # google-bert/bert-base-uncased 仍用 TensorFlow 的旧名 gamma、beta
        self.weights = {modern_spelling(key): w.float() for key, w in load_file(folder / "model.safetensors").items()}

    def linear(self, x: Tensor, name: str) -> Tensor:
        """A linear layer: x Wᵀ + b."""
        return x @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]

    def norm(self, x: Tensor, name: str) -> Tensor:
        """Mean 0 and deviation 1 along each row, then a learned gain and bias."""
        gain, bias = self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
        return layer_norm(x, x.shape[-1:], gain, bias, eps=self.config["layer_norm_eps"])

    def embed(self, ids: Tensor, segments: Tensor) -> Tensor:
        """The sum of what a token is, where it stands, and which sentence it belongs to: [S] → [S, H]."""
        word, position, segment = (
            self.weights[f"bert.embeddings.{kind}_embeddings.weight"] for kind in ("word", "position", "token_type")
        )
        # 注意力看不见次序：位置嵌入是词序唯一的来源
        return self.norm(word[ids] + position[: len(ids)] + segment[segments], "bert.embeddings.LayerNorm")

    def attend(self, x: Tensor, layer: str) -> Tensor:
        """softmax(Q Kᵀ / √D) V in A heads, joined and projected: [S, H] → [S, H]."""
        heads = self.config["num_attention_heads"]
        query, key, value = (
            self.linear(x, f"{layer}.attention.self.{part}").view(len(x), heads, -1).transpose(0, 1)  # [A, S, D]
            for part in ("query", "key", "value")
        )
        # 除以 √D：点积的离散程度随 √D 增大，不除 softmax 就会饱和
        shares = (query @ key.transpose(1, 2) / query.shape[-1] ** 0.5).softmax(dim=-1)  # [A, S, S]
        joined = (shares @ value).transpose(0, 1).flatten(1)  # [S, H]
        return self.linear(joined, f"{layer}.attention.output.dense")

    def block(self, x: Tensor, layer: str) -> Tensor:
        """Attention, then a feed-forward layer; each is added to its input, and the sum is normalised."""
        x = self.norm(x + self.attend(x, layer), f"{layer}.attention.output.LayerNorm")
        inner = gelu(self.linear(x, f"{layer}.intermediate.dense"))  # [S, 4 H]
        return self.norm(x + self.linear(inner, f"{layer}.output.dense"), f"{layer}.output.LayerNorm")

    def states(self, ids: Tensor, segments: Tensor) -> list[Tensor]:
        """The states [S, H] after the embedding and after each of the L blocks."""
        states = [self.embed(ids, segments)]
        for number in range(self.config["num_hidden_layers"]):
            states.append(self.block(states[-1], f"bert.encoder.layer.{number}"))
        return states

    def pooled(self, states: Tensor) -> Tensor:
        """What a classifier reads: tanh(W C + b) of the state of [CLS], [H]."""
        return self.linear(states[0], "bert.pooler.dense").tanh()

    def masked_lm(self, states: Tensor) -> Tensor:
        """A score for every piece at every token, [S, V]: how alike the state and the piece's embedding are."""
        x = gelu(self.linear(states, "cls.predictions.transform.dense"))
        x = self.norm(x, "cls.predictions.transform.LayerNorm")
        # 输出矩阵就是词嵌入本身：输入和输出共用一张表
        return x @ self.weights["bert.embeddings.word_embeddings.weight"].T + self.weights["cls.predictions.bias"]


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else trained_model()
    tokenizer, bert = load_tokenizer(folder), Bert(folder)
    text = sys.argv[2] if len(sys.argv) > 2 else "the man reads the [MASK]"
    ids = torch.tensor(tokenizer.template.wrap(tokenizer.encode(text, parse_special=True)))  # [CLS] … [SEP]
    scores = bert.masked_lm(bert.states(ids, torch.zeros_like(ids))[-1])
    for probabilities in scores[ids == tokenizer.mask_token_id].softmax(dim=-1):
        for probability, piece in zip(*probabilities.topk(5), strict=True):
            print(f"{tokenizer.vocab[int(piece)]:12} {float(probability):.1%}")
