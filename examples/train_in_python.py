"""The main job with the Python names instead of the command line: text in, a filled mask out.

    python examples/train_in_python.py [STEPS]

The text is the bundled village; for your own replace `documents`, with the names of `bertsmith.data.reading.text` and
`bertsmith.data.reading.sources`, by

    documents = list(read_documents(find_text_files(["your/folder"])))

With the default 1,500 steps it takes about a minute on two cores.
"""

import sys
import tempfile

import torch

from bertsmith import BertConfig, BertForPreTraining, BertTrainer, WordPieceTokenizer, load_pipeline
from bertsmith.data.corpus.build import build_from_documents
from bertsmith.data.reading.text import Document
from bertsmith.data.stream.stream import PreTrainingStream, StreamSettings
from bertsmith.objectives import objective_named
from bertsmith.tinyworld import draw_captions, draw_stories, render
from bertsmith.train.trainer import TrainerSettings

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 1500
documents = [Document("village", tuple(render(s) for s in story.sentences)) for story in draw_stories(0, 4000)]
documents += [Document("village", (render(caption),)) for caption in draw_captions(0, 1500)]

with tempfile.TemporaryDirectory() as folder:
    # 词表 → 分片 → 数据流：数据流每次现抽句对和遮盖
    tokenizer = WordPieceTokenizer.train((s for d in documents for s in d.sentences), vocab_size=2000)
    corpus = build_from_documents(documents, tokenizer, f"{folder}/shards")
    stream = PreTrainingStream(corpus, tokenizer, StreamSettings(sequence_length=64, batch_size=32))

    torch.manual_seed(0)
    config = BertConfig.named("tiny", vocab_size=len(tokenizer), max_position_embeddings=64, hidden_dropout_prob=0.0)
    model = BertForPreTraining(config)
    settings = TrainerSettings(total_steps=steps, learning_rate=1.5e-3)
    trainer = BertTrainer(model, objective_named("mlm+nsp"), settings)

    while trainer.step < steps:
        measure = trainer.train_batch(next(stream))
        if trainer.step % 100 == 0:
            print(f"step {trainer.step}: loss {measure.loss.item():.3f}")

    model.save_pretrained(f"{folder}/model")
    tokenizer.save(f"{folder}/model")
    for candidate in load_pipeline("fill-mask", f"{folder}/model")("the man reads the [MASK]")[0]:
        print(f"{candidate.piece:12} {candidate.probability:.1%}")
