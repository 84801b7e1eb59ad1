"""`bertsmith compare word-vectors`, `nearest`, `lstm`, `seq2seq` and `rewrite`: what BERT is compared with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import typer

from bertsmith.cli.options import declares
from bertsmith.cli.standard_input import PIPE, JsonOption, batches, print_json, texts

T = TypeVar("T")


@declares("bertsmith_school.neighbours.word2vec.WordVectorOptions")
def word_vectors(
    *,
    corpus: Annotated[Path, typer.Option(help="Folder of token shards, from `bertsmith corpus`.")],
    tokenizer: Annotated[Path, typer.Option(help="Folder of the tokenizer that made them.")],
    out: Annotated[Path, typer.Option(help="Folder for vectors.bin; the same command resumes where it stopped.")],
    **settings: Any,
) -> None:
    """Learn a vector for every piece, by skip-gram or CBOW, for comparison with BERT."""
    from bertsmith.data.corpus.shards import TokenCorpus
    from bertsmith.settings import built
    from bertsmith.tokenizer import load_tokenizer
    from bertsmith_school.neighbours import WordVectorOptions, learn_word_vectors

    pieces = load_tokenizer(tokenizer)
    options = built(WordVectorOptions, settings)
    if found := _learned(learn_word_vectors, out, TokenCorpus(corpus, pieces), pieces, options):
        print(f"{len(found.words):,} vectors of {found.vectors.shape[1]} numbers in {out / 'vectors.bin'}")


def _learned(learn: Callable[..., T], *given: Any) -> T | None:
    """Learns with a progress bar; None, with the reason printed, where a signal stopped it."""
    from rich.console import Console

    from bertsmith.train.monitor import TrainingStopped

    try:
        return learn(*given, console=Console())
    except TrainingStopped as stopped:
        print(stopped)
        return None


def nearest(
    model: Annotated[Path, typer.Argument(help="Folder that `compare word-vectors` wrote.")],
    words: Annotated[
        list[str] | None, typer.Argument(help="Words to add; - reads lines of words, each line by itself.")
    ] = None,
    *,
    minus: Annotated[list[str] | None, typer.Option(help="A word to subtract; may be repeated.")] = None,
    count: Annotated[int, typer.Option(min=1, help="Number of words to show.")] = 10,
    as_json: JsonOption = False,
) -> None:
    """Show the nearest words, or solve an analogy: nearest DIR king woman --minus man."""
    from bertsmith_school.neighbours import WordVectors

    vectors = WordVectors.load(model)
    lines = [words] if words and words != [PIPE] else (one.text.split() for one in texts(PIPE if words else None))
    for added in lines:
        for word, cosine in vectors.nearest(added, minus or (), count):
            if as_json:
                print_json({"plus": added, "minus": minus or [], "word": word, "cosine": float(cosine)})
            else:
                print(f"{cosine:.4f}\t{word}", flush=True)


@declares("bertsmith_school.neighbours.lstm.LstmOptions", "bertsmith.finetune.datasets.ReadingOptions")
def lstm(
    *,
    corpus: Annotated[Path, typer.Option(help="Folder of token shards, from `bertsmith corpus`.")],
    tokenizer: Annotated[Path, typer.Option(help="Folder of the tokenizer that made them.")],
    out: Annotated[Path, typer.Option(help="Folder of the model; the same command resumes where it stopped.")],
    tagged: Annotated[
        str | None, typer.Option(help="CoNLL or CoNLL-U file to probe the layers on; default: the village's.")
    ] = None,
    **settings: Any,
) -> None:
    """Train LSTMs that read both ways, ELMo's idea, and probe their layers, for comparison with BERT."""
    from bertsmith.data.corpus.shards import TokenCorpus
    from bertsmith.finetune.datasets import ReadingOptions
    from bertsmith.settings import built, divided
    from bertsmith.tokenizer import load_tokenizer
    from bertsmith_school.commands.looking import print_tables
    from bertsmith_school.looking.probes import Probes, probe_layers, tagged_sentences
    from bertsmith_school.neighbours import learn_two_ways
    from bertsmith_school.neighbours.lstm import SEQUENCE, LstmOptions

    # 标注文件先读：写错一行不该在训练之后才说
    options, reading = divided(settings, LstmOptions, ReadingOptions, command="compare lstm")
    sentences, pieces = tagged_sentences(tagged, built(ReadingOptions, reading)), load_tokenizer(tokenizer)
    learned = _learned(learn_two_ways, out, TokenCorpus(corpus, pieces), pieces, built(LstmOptions, options))
    if learned is None:
        return
    model, figures = learned
    for way in ("ahead", "behind"):
        print(f"held out, {way}: {figures[f'{way}_loss']:.3f} nats, {figures[f'{way}_accuracy']:.1%} right")
    print_tables(Probes({}, probe_layers(model, SEQUENCE, pieces, sentences), None))


VillageTask = Literal["translate", "copy", "reverse"]


@declares("bertsmith_school.neighbours.seq2seq.Seq2SeqOptions")
def seq2seq(
    pairs: Annotated[Path | None, typer.Argument(help="Lines of source and target text, with a tab between.")] = None,
    *,
    text: Annotated[
        list[str] | None, typer.Option(help="Instead: text files or folders to learn denoising from; may be repeated.")
    ] = None,
    village: Annotated[
        VillageTask | None, typer.Option(help="Or a task of the village: translate, copy or reverse sentences.")
    ] = None,
    dev: Annotated[Path | None, typer.Option(help="Pairs to score the model on at the end.")] = None,
    out: Annotated[Path, typer.Option(help="Folder of the model; the same command resumes where it stopped.")],
    **settings: Any,
) -> None:
    """Train an encoder and a decoder to turn one text into another: the whole Transformer, for comparison."""
    from bertsmith.data.reading.documents import readable_files
    from bertsmith.data.reading.opening import encodings_of, opening_lines
    from bertsmith.data.reading.text import corpus_documents, read_documents
    from bertsmith.errors import ConfigError
    from bertsmith.settings import built
    from bertsmith_school.neighbours.seq2seq import Seq2SeqOptions, learn_to_rewrite, read_text_pairs
    from bertsmith_school.neighbours.translation import rewriting_pairs

    def read_pairs(path: Path) -> list[tuple[str, str]]:
        found = read_text_pairs(path)
        print(f"{path}: {encodings_of([str(path)], 'auto')}; {len(found):,} pairs")
        return found

    if (pairs is not None) + bool(text) + (village is not None) != 1:
        raise ConfigError("give one of a file of pairs, --text and --village")
    chosen = built(Seq2SeqOptions, settings)
    texts: Sequence[tuple[str, str]] | Sequence[str]
    if pairs is not None:
        texts = read_pairs(pairs)
    elif text:
        files = readable_files(text)
        rule, _ = corpus_documents(files)
        print(*opening_lines(text, files, documents=rule), sep="\n")
        texts = [sentence for document in read_documents(files, documents=rule) for sentence in document.sentences]
    else:
        assert village is not None
        texts = rewriting_pairs(village, chosen.seed, split="train")
    judged = read_pairs(dev) if dev is not None else []
    if village is not None:
        judged = judged or rewriting_pairs(village, chosen.seed, split="dev")
    model = _learned(learn_to_rewrite, out, texts, chosen)
    if model is None:
        return
    # 只考没见过、而且读得下的句子
    seen = set(texts)
    new = [pair for pair in judged if pair not in seen]
    held = [pair for pair in new if 0 < len(model.tokenizer.encode(pair[0])) <= model.max_length]
    left = {"seen in training": len(judged) - len(new), "empty or too long": len(new) - len(held)}
    said = ", ".join(f"{count} {why}" for why, count in left.items() if count)
    if said and dev is not None:
        print(f"left out of {dev}: {said}")
    if held:
        print(f"written exactly as they should be: {model.exact(held):.1%} of {len(held)} unseen")
    print(f"the model: {out}")


def rewrite(
    model: Annotated[Path, typer.Argument(help="Folder that seq2seq wrote.")],
    given: Annotated[
        list[str] | None, typer.Argument(metavar="[TEXTS]...", help="Texts to read; - reads lines of standard input.")
    ] = None,
    *,
    beam: Annotated[int, typer.Option(min=1, help="Beam width; 1 is greedy.")] = 4,
    as_json: JsonOption = False,
) -> None:
    """Write the output of a seq2seq model for a text, by beam search."""
    from bertsmith_school.neighbours.seq2seq import Rewriter

    inputs = batches(given or [])
    rewriter = Rewriter.load(model)
    for batch in inputs:
        for _, text in batch:
            written = rewriter(text, beam=beam) if text.strip() else ""
            if as_json:
                print_json({"text": text, "rewritten": written})
            else:
                print(written, flush=True)
