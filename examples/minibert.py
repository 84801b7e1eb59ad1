"""MiniBert, the one-layer BERT in NumPy whose gradients are derived by hand, with positions and without.

    python examples/minibert.py [SEEDS] [FILE]

Trains on `minibert_sentences.txt` beside this file and fills three gaps; or on a text file of your own with one
sentence a line, and then fills the last word of its first three sentences. A training takes seconds; the default is
five seeds, with and without positions.
"""

import sys
import time
from pathlib import Path

from bertsmith_school.learn.minibert import MASK, VERBS, train_minibert

PROBES = ("the man eats the [MASK]", "the man reads the [MASK]", "the man [MASK] the book")

seeds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
own = len(sys.argv) > 2
file = Path(sys.argv[2]) if own else Path(__file__).with_name("minibert_sentences.txt")
try:
    sentences = [line for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
except (OSError, UnicodeDecodeError) as error:
    sys.exit(f"{file}: cannot be read ({getattr(error, 'strerror', None) or 'not UTF-8'}); name a text file")
if not sentences:
    sys.exit(f"{file}: holds no sentence; write one a line, with spaces between the words")
# 模型只认识自己句子里的词：换了文件，空格也要出自那个文件
first = list(dict.fromkeys(sentences))[:3]
probes = [" ".join([*line.split()[:-1], MASK]) for line in first] if own else list(PROBES)

for use_positions in (True, False):
    print(f"\n{'with' if use_positions else 'without'} positions")
    means: dict[str, dict[str, float]] = {probe: {} for probe in probes}
    start = time.perf_counter()
    for seed in range(seeds):
        trained = train_minibert(sentences, seed=seed, use_positions=use_positions)
        for probe in means:
            for word, probability in trained.fill(probe)[0].items():
                means[probe][word] = means[probe].get(word, 0.0) + probability / seeds
    # 多个种子取平均：只看一次训练，可能只是运气
    for probe, filled in means.items():
        best = sorted(filled, key=filled.__getitem__, reverse=True)[:3]
        line = f"  {probe:26} {'  '.join(f'{word} {filled[word]:.0%}' for word in best):40}"
        verbs = sum(probability for word, probability in filled.items() if word in VERBS)
        print(line.rstrip() if own else f"{line} verbs {verbs:.0%}")
    print(f"  {(time.perf_counter() - start) / seeds:.1f} s a training, mean over {seeds} seeds")
