"""What a folder of text is about: groups of passages with similar meaning, the words of each, and how they come and go.

- passages, vectors and words are those of an index: an update embeds only what changed, and topics can be searched
- K-means on 50 principal components finds the groups; the coherence of their words decides how many, since people's
  judgement of topics follows it best (Lau, Newman and Baldwin 2014)
- words are weighed by class-based TF-IDF (Grootendorst 2022, eq. 2), and only those that a topic's passages hold
  clearly more often than all others: no list of stop words is needed, in any language
- what grows with the square of the passages is done on a sample, so that a million of them take minutes
"""

from __future__ import annotations

import re
import shlex
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from email.utils import parsedate_to_datetime
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from numpy.typing import NDArray

from bertsmith.data.reading.sources import few_names, left_out, text_endings
from bertsmith.errors import ConfigError, RunFolderError
from bertsmith.files import write_json, write_text
from bertsmith.finetune.report import what_was_read
from bertsmith.reporting.drawing import drawable
from bertsmith.reporting.page import Part, Picture, Table, render_report
from bertsmith.retrieval import Hit, SearchIndex, load_index
from bertsmith.retrieval.build import Progress, index
from bertsmith.retrieval.lexical import usual_spelling
from bertsmith.retrieval.stored import CLAIM, IndexedDocument
from bertsmith.seeding import generator
from bertsmith.settings import Result

if TYPE_CHECKING:
    from scipy.sparse import csc_array

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]

_COUNTS = (2, 3, 4, 6, 8, 11, 15, 20, 27, 36, 48, 64)
_FEWEST = 8
"""Numbers of topics to choose from, and how many passages that differ there must be for each."""
_COMPONENTS, _FITTED, _COMPARED, _DRAWN = 50, 20_000, 4_000, 1_000
"""Numbers kept of a vector; passages that groups are made of, that counts are compared on, and on the map."""
_CLEARLY, _WORDS, _EXAMPLES, _MOST_PERIODS = 3.0, 10, 3, 30


@dataclass(frozen=True)
class Topic:
    """A group of passages with similar meaning.

    Attributes:
        number: from 1, the largest first.
        words: word → weight, the heaviest first; empty where the topic has no word of its own.
        share: of all passages, in [0, 1].
        examples: those nearest to its middle; `score` is the cosine of passage and middle.
        over_time: period → passages; empty where no document has a date.
    """

    number: int
    words: dict[str, float]
    passages: int
    share: float
    examples: list[Hit]
    over_time: dict[str, int]

    @property
    def name(self) -> str:
        """Its number and its first words."""
        return f"{self.number} " + (", ".join(list(self.words)[:3]) or "(no word of its own)")


@dataclass(frozen=True)
class Topics:
    """The topics of a folder.

    Attributes:
        topics: the largest first.
        coherence: how often the words of a topic stand together: mean NPMI, in [-1, 1].
        passages: of each in the order of the index: its place, and the number of its topic.
        documents, dated: files with text, and how many of them have a date.
    """

    topics: list[Topic]
    coherence: float
    passages: list[tuple[str, int]]
    documents: int
    dated: int

    @property
    def verdict(self) -> str:
        """What was found, in words."""
        first = self.topics[0]
        counted = f"{len(self.passages):,} passages of {self.documents:,} files"
        if len(self.topics) == 1:
            return f"One topic: the {counted} are too few, or too alike, to be told apart."
        return f"{len(self.topics)} topics in {counted}; the largest, “{first.name}”, holds {first.share:.0%}."


def topics(
    folder: str | Path,
    model: str | Path | None = None,
    out: str | Path = "runs/topics",
    *,
    count: int = 0,
    device: torch.device | str | None = None,
    on_progress: Progress | None = None,
    on_note: Callable[[str], None] | None = None,
    **settings: Any,
) -> Result[Topics]:
    """Finds the topics of a folder of text.

    Examples:
        >>> import bertsmith
        >>> found = bertsmith.topics("texts", "run/model", "texts.topics").details
        >>> sum(topic.passages for topic in found.topics) == len(found.passages)
        True

    Args:
        folder: of text files and documents, as for `index`; or an index, which needs no model.
        model: a model folder, or `org/name` of the Hub; best one that was trained for vectors.
        out: gets `report.html`, `topics.json` and the index; must lie outside the folder.
        count: how many topics; 0 takes the number whose words are most coherent.
        device: None takes the GPU where there is one.
        on_progress: told how many passages were embedded, and how many there are to embed.
        on_note: told what was understood of the folder, as by `index`.
        **settings: the options of `bertsmith index`, with underscores, such as `passage_tokens`.

    Returns:
        `metrics`: topics, passages, documents and coherence; `report`: the page; `details`: the topics.

    Raises:
        InputError: the folder is missing or holds no text.
        BertsmithError: a setting, the model, the index or `out` cannot be used, or a library is not installed.
    """
    out, held = Path(out), Path(folder)
    read = list[tuple[str, str]]()

    def tell(line: str) -> None:
        read.append(("text", line))
        if on_note is not None:
            on_note(line)

    if (held / CLAIM).is_file():
        if model is not None or settings:
            raise ConfigError(f"{folder}: is an index, which has its model and settings; leave yours out")
    elif model is None:
        raise ConfigError(f"{folder}: is no index: name with --model what makes its vectors, or give an index")
    elif held.resolve() in (out.resolve(), *out.resolve().parents):
        raise RunFolderError(f"{out}: lies in {folder}, whose files are read; choose another --out")
    else:
        held = index(
            folder, model, out / "index", device=device, on_progress=on_progress, on_note=tell, **settings
        ).folder
        # 说明随索引的更新而来，没有变的文件不再提；读不到文字的，下面从索引里数
        read += [("note", note)] if (note := left_out([folder], text_endings())) else []
    opened = load_index(held)
    if without := [document.name for document in opened.stored.current.documents if not document.passages]:
        read.append(("note", f"no text found in {len(without):,} file(s): {few_names(without, 3)}"))
    found = find_topics(opened, count)
    write_json(out / "topics.json", {"coherence": found.coherence, **_plain(found)})
    write_text(out / "report.html", _page(found, opened, held, read))
    metrics = {"topics": len(found.topics), "passages": len(found.passages), "documents": found.documents}
    return Result(out, {**metrics, "coherence": found.coherence}, None, out / "report.html", found)


def find_topics(opened: SearchIndex, count: int = 0) -> Topics:
    """Groups the passages of an index into `count` topics; 0 takes the number whose words are most coherent.

    Raises:
        ConfigError: fewer passages differ than topics are asked for.
    """
    present, words = opened.lexical.incidence()
    groups, coherence = _grouped(opened.stored.vectors, present, count)
    # 最大的主题编号为 1：换了机器、换了初值，编号也大致不变
    order = np.argsort(-np.bincount(groups), kind="stable")
    groups = np.argsort(order)[groups]
    sizes = np.bincount(groups)
    closeness = _closeness(opened.stored.vectors, groups)
    weights = _class_tf_idf(present, groups, sizes)
    documents = [document for document in opened.stored.current.documents if document.passages]
    dates = [date_of(document) for document in documents]
    periods, numbers = _periods(dates)
    period_of = np.repeat(numbers, [document.passages for document in documents])
    hits = opened.hits(list(enumerate(closeness.tolist())))
    made = []
    for group, size in enumerate(sizes.tolist()):
        rows = np.flatnonzero(groups == group)
        heavy = _heaviest(weights[group])
        texts = [hits[row].text for row in _rows_with(present, heavy, rows)]
        spelled = usual_spelling(texts, [words[place] for place in heavy], opened.lexical.fold)
        weighed = {spelled[words[place]]: float(weights[group, place]) for place in heavy}
        nearest = rows[np.argsort(-closeness[rows], kind="stable")[:_EXAMPLES]]
        counted = np.bincount(period_of[rows][period_of[rows] >= 0], minlength=len(periods)).tolist()
        over_time = dict(zip(periods, counted, strict=True))
        examples = [hits[row] for row in nearest]
        made.append(Topic(group + 1, weighed, size, size / len(groups), examples, over_time))
    placed = [(hit.place, int(group) + 1) for hit, group in zip(hits, groups, strict=True)]
    return Topics(made, coherence, placed, len(documents), sum(map(bool, dates)))


def _grouped(vectors: Floats, present: csc_array, count: int) -> tuple[Ints, float]:
    """Returns the group of each of N passages, and the coherence of the groups' words on a sample."""
    from sklearn.cluster import KMeans
    from sklearn.decomposition import PCA

    # 次序随机：前几千段就是一个样本
    chosen = generator(0, "topics").permutation(len(vectors))[:_FITTED]
    sample, held = np.asarray(vectors[chosen]), present[chosen]
    different = len(np.unique(sample.round(3), axis=0))
    if count > different:
        raise ConfigError(f"--topics {count}: only {different:,} passages differ; ask for fewer")
    counts = (count,) if count else tuple(each for each in _COUNTS if _FEWEST * each <= different) or (1,)
    projection = PCA(min(_COMPONENTS, *sample.shape), svd_solver="full", random_state=0)
    with np.errstate(invalid="ignore"):
        # 一段文字、或全都相同：没有方差，解释的比例是 0/0，这里也用不到
        reduced = projection.fit_transform(sample)

    def grouping(number: int, of: Floats) -> KMeans:
        return KMeans(number, n_init=2, random_state=0).fit(of)

    def coherence_of(groups: Ints, number: int) -> float:
        own = held[: len(groups)]
        return _coherence(own, _class_tf_idf(own, groups, np.bincount(groups, minlength=number)))

    few = reduced[:_COMPARED]
    best = max(counts, key=lambda each: coherence_of(grouping(each, few).labels_, each)) if counts[1:] else counts[0]
    fitted = grouping(best, reduced)
    blocks = (vectors[first : first + _FITTED] for first in range(0, len(vectors), _FITTED))
    groups = [fitted.predict(projection.transform(np.asarray(block))) for block in blocks]
    return np.concatenate(groups).astype(np.int64), coherence_of(fitted.labels_, best)


def _coherence(present: csc_array, weights: Floats) -> float:
    """Returns how often a topic's words stand together: the mean NPMI of their pairs (Bouma 2009), in [-1, 1]."""
    found = []
    for row in weights:
        heavy = _heaviest(row)
        held = present[:, heavy]
        both = (held.T @ held).toarray() / present.shape[0]
        alone = both.diagonal()
        first, second = np.triu_indices(len(heavy), 1)
        joint = both[first, second]
        # 从不同现的一对取极限 -1；处处同现的一对没有信息，取 0
        with np.errstate(divide="ignore", invalid="ignore"):
            values = np.log(joint / (alone[first] * alone[second])) / -np.log(joint)
        values = np.where(joint == 0, -1.0, np.where(joint >= 1, 0.0, values))
        found.append(float(values.mean()) if len(values) else 0.0)
    return float(np.mean(found))


def _heaviest(weights: Floats) -> list[int]:
    order = np.argsort(-weights, kind="stable")[:_WORDS]
    return order[weights[order] > 0].tolist()  # type: ignore[no-any-return]


def _closeness(vectors: Floats, groups: Ints) -> Floats:
    """Returns the cosine of every vector and the middle of its group."""
    found = np.empty(len(vectors), dtype=np.float32)
    for group in np.unique(groups):
        rows = np.flatnonzero(groups == group)
        own = np.asarray(vectors[rows])
        middle = own.mean(axis=0)
        lengths = np.linalg.norm(own, axis=1) * np.linalg.norm(middle)
        found[rows] = own @ middle / np.maximum(lengths, 1e-12)
    return found


def _class_tf_idf(present: csc_array, groups: Ints, sizes: Ints) -> Floats:
    """Weighs words by topic [K, V]: tf · log(1 + A / f), A mean words of a topic; 0 where not clearly above others."""
    from scipy.sparse import csr_array

    members = csr_array((np.ones(len(groups), dtype=np.float32), (groups, np.arange(len(groups)))))
    counts: Floats = (members @ present).toarray()
    total = counts.sum(axis=0)
    weights: Floats = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    weights *= np.log1p(counts.sum() / len(sizes) / np.maximum(total, 1))
    inside = counts / np.maximum(sizes, 1)[:, None]
    outside = (total - counts) / np.maximum(len(groups) - sizes, 1)[:, None]
    # 停用词在哪个主题里都一样常见：比别处常见三倍才算这个主题的词
    weights[inside < _CLEARLY * outside] = 0
    return weights


def _rows_with(present: csc_array, words: Sequence[int], rows: Ints) -> Ints:
    """Returns some of the rows, four for each word that stand in them."""
    nothing = np.zeros(0, dtype=np.int64)
    found = [np.intersect1d(present.indices[slice(*present.indptr[word : word + 2])], rows)[:4] for word in words]
    some: Ints = np.unique(np.concatenate([nothing, *found]))
    return some


_ISO = re.compile(r"(\d{4})(?:-(\d\d)(?:-(\d\d))?)?(?!\d)")
_IN_NAME = re.compile(r"(?<!\d)\d{4}-\d\d(?:-\d\d)?(?!\d)|(?<![^ _-])(?:1[5-9]|20)\d\d(?![^ ._-])")


def date_of(document: IndexedDocument) -> str:
    """Returns a date as `2024-05-31`, `2024-05`, `2024` or empty: of the field `date`, else of the file's name."""
    field = document.metadata.get("date", "")
    told = field if isinstance(field, str) else next(iter(field), "")
    named = _IN_NAME.search(PurePosixPath(document.name).name)
    for text in (told, named[0] if named else ""):
        if match := _ISO.match(text.strip()):
            try:
                year, month, day = (int(part or 1) for part in match.groups())
                date(year, month, day)
                return match[0]
            except ValueError:
                continue
        try:
            return parsedate_to_datetime(text).date().isoformat()
        except ValueError:
            continue
    return ""


def _periods(dates: Sequence[str]) -> tuple[list[str], Ints]:
    """Returns the periods that dates fall into, in order, and the number of the period of each; -1 for no date."""
    given = [text for text in dates if text]
    nowhere = np.full(len(dates), -1, dtype=np.int64)
    if not given:
        return [], nowhere
    # 不比写得最粗的日期更细：写到日、到月、到年
    finest = {10: 0, 7: 1, 4: 2}[min(map(len, given))]
    days = np.array(given, dtype="datetime64[D]")
    cut = [days.astype(f"datetime64[{unit}]") for unit in ("D", "M", "Y", "10Y")[finest:]]
    # 最细的、又画得下的刻度；十年一格还画不下，就只好多画几格
    own = next((one for one in cut if np.ptp(one.astype(np.int64)) < _MOST_PERIODS), cut[-1])
    periods = np.arange(own.min(), own.max() + 1)
    nowhere[[bool(text) for text in dates]] = np.searchsorted(periods, own)
    return [f"{period}{'s' if own is cut[-1] else ''}" for period in periods], nowhere


def _plain(found: Topics) -> dict[str, Any]:
    told = [
        {**asdict(topic), "examples": [{"place": hit.place, "text": hit.text} for hit in topic.examples]}
        for topic in found.topics
    ]
    return {"topics": told, "passages": [{"place": place, "topic": number} for place, number in found.passages]}


def _page(found: Topics, opened: SearchIndex, held: Path, read: Sequence[tuple[str, str]]) -> str:
    rows = [
        (str(topic.number), ", ".join(topic.words), f"{topic.passages:,}", f"{topic.share:.1%}", _example(topic))
        for topic in found.topics
    ]
    columns = ("topic", "words", "passages", "share", "nearest to its middle")
    note = (
        f"Coherence {found.coherence:.3f}: how often the words of a topic stand in one passage (mean NPMI); 0 is"
        " chance, 1 is always. --topics N asks for another number."
    )
    parts: list[Part] = [what_was_read(read)] if read else []
    parts.append(Table("Topics", columns, rows, note, ("figure", "text", "figure", "figure", "note")))
    if len(found.topics) > 1:
        parts.append(_map(found, opened))
        if found.dated:
            parts.append(_over_time(found))
    asked = " ".join(list(found.topics[0].words)[:3])
    commands = [f"bertsmith search {shlex.quote(str(held))} {shlex.quote(asked)}"] if asked else []
    return render_report("Topics", f"In {held}.", parts, verdict=found.verdict, commands=commands)


def _example(topic: Topic) -> str:
    hit = topic.examples[0]
    return f"{' '.join(hit.text.split())[:160]} ({hit.place})"


def map_passages(opened: SearchIndex) -> tuple[Ints, Floats]:
    """Lays at most 1,000 passages out by t-SNE (van der Maaten and Hinton 2008): their rows [D] and points [D, 2]."""
    from sklearn.manifold import TSNE

    vectors = opened.stored.vectors
    chosen = np.sort(generator(0, "topics/map").permutation(len(vectors))[:_DRAWN])
    rows = np.asarray(vectors[chosen])
    if len(rows) < 2:
        return chosen, np.zeros((len(rows), 2), dtype=np.float32)
    with warnings.catch_warnings():
        # 几段一模一样的文字：距离为零，除法的警告与图无关
        warnings.simplefilter("ignore")
        drawn = TSNE(
            method="exact", perplexity=min(30, (len(rows) - 1) / 3), init="random", max_iter=500, random_state=0
        )
        return chosen, drawn.fit_transform(rows)


def _map(found: Topics, opened: SearchIndex) -> Picture:
    rows, points = map_passages(opened)
    groups = np.array([found.passages[row][1] for row in rows])
    labels, family, note = drawable([topic.name.partition(",")[0] for topic in found.topics])
    figure = Figure(figsize=(8, 6))
    axes = figure.add_axes((0.03, 0.03, 0.94, 0.94))
    axes.axis("off")
    axes.scatter(points[:, 0], points[:, 1], c=groups, cmap="tab20", s=9, alpha=0.7, rasterized=True)
    for number, label in enumerate(labels, 1):
        if (groups == number).any():
            x, y = np.median(points[groups == number], axis=0)
            box = {"facecolor": "white", "alpha": 0.75, "linewidth": 0, "pad": 1.5}
            axes.text(x, y, label, family=family, fontsize=9, ha="center", bbox=box, parse_math=False)
    told = f"{len(rows):,} passages, one dot each; neighbours have similar meaning; longer distances say little."
    return Picture("Map", told, figure, note)


def _over_time(found: Topics) -> Picture:
    """Draws how much of each period's passages a topic has."""
    counts = np.array([list(topic.over_time.values()) for topic in found.topics], dtype=np.float32)
    shares = counts / np.maximum(counts.sum(axis=0), 1)
    labels, family, note = drawable([topic.name for topic in found.topics])
    figure = Figure(figsize=(9, 2.5 + 0.3 * len(labels)), layout="constrained")
    axes = figure.add_subplot()
    # 多数份额很小：颜色随平方根加深
    shade = PowerNorm(0.5, 0, max(float(shares.max()), 1e-6))
    shades = axes.imshow(shares, "Blues", norm=shade, aspect="auto", interpolation="nearest")
    axes.set_yticks(range(len(labels)), labels, family=family, fontsize=9, parse_math=False)
    axes.set_xticks(range(shares.shape[1]), list(found.topics[0].over_time), rotation=90, fontsize=8)
    figure.colorbar(shades, ax=axes, label="share of the period's passages")
    told = f"{found.dated:,} of {found.documents:,} files have a date; a column is a period, and adds up to 1."
    return Picture("Over time", told, figure, note)
