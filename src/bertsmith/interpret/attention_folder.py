"""Everything about the attention of one text in one folder: the page to explore, and PNG pictures for a report."""

from __future__ import annotations

from pathlib import Path

from bertsmith.errors import RunFolderError
from bertsmith.files import make_folder, write_text
from bertsmith.interpret.attention_page import attention_page, require_head
from bertsmith.interpret.attention_plots import draw_cls, draw_heads, draw_pair_shares, draw_summaries
from bertsmith.interpret.heatmap import draw_heatmap
from bertsmith.interpret.maps import AttentionMaps, mean_over_heads, rollout
from bertsmith.reporting.drawing import Drawing, write_picture

PAGE = "attention.html"


def write_attention(
    attention: AttentionMaps, folder: Path, *, layer: int | None = None, head: int | None = None
) -> list[str]:
    """Writes `attention.html`, and as PNG one head, all heads, `[CLS]`, rollout, the measures, and a pair's shares.

    Args:
        attention: of a text or pair.
        folder: made when missing; pictures of an earlier text there are replaced.
        layer: of the single map, from 0; None for the last one.
        head: of the single map, from 0; None for the mean of the layer's heads.

    Returns:
        Lines for the reader: what was written, and what to know about it.

    Raises:
        InputError: there is no such layer or head.
        RunFolderError: the folder holds something else, or cannot be written.
    """
    layer = attention.maps.shape[0] - 1 if layer is None else layer
    require_head(attention, layer, head)
    _claim(folder)
    page = attention_page(attention, layer=layer, head=head)
    pictures: dict[str, Drawing] = {
        "head.png": _single(attention, layer, head),
        "heads.png": Drawing(draw_heads(attention), ""),
        "cls.png": draw_cls(attention),
        "rollout.png": draw_heatmap(
            attention.tokens,
            rollout(attention.maps)[-1],
            title=f"Attention rollout, up to layer {attention.maps.shape[0]}",
            token_type_ids=attention.sequence_ids,
        ),
        "measures.png": Drawing(draw_summaries(attention), ""),
    }
    if attention.is_pair:
        pictures["pair.png"] = Drawing(draw_pair_shares(attention), "")
    notes = [attention.note]
    # 上一次是句对、这一次不是：旧的 pair.png 不能留下来冒充
    (folder / "pair.png").unlink(missing_ok=True)
    # 页面最先写：有它在，这个文件夹就认得出是谁的，中途停下也可以重来
    write_text(folder / PAGE, page)
    for name, picture in pictures.items():
        notes += [picture.note, write_picture(picture.figure, folder / name)]
    size = (folder / PAGE).stat().st_size
    summary = f"{len(attention.tokens)} tokens, {attention.maps.shape[0]} layers of {attention.maps.shape[1]} heads"
    files = f"{folder / PAGE} ({size / 1e6:.1f} MB) and {', '.join(pictures)} beside it"
    # 同一条字体提示每张图都会给出：只说一次
    return [f"{summary}: {files}", *dict.fromkeys(note for note in notes if note)]


def _single(attention: AttentionMaps, layer: int, head: int | None) -> Drawing:
    weights = mean_over_heads(attention.maps)[layer] if head is None else attention.maps[layer, head]
    name = "mean over heads" if head is None else f"head {head + 1}"
    return draw_heatmap(
        attention.tokens, weights, title=f"layer {layer + 1}, {name}", token_type_ids=attention.sequence_ids
    )


def _claim(folder: Path) -> None:
    """Makes sure that a folder is ours to write in.

    Raises:
        RunFolderError: a file stands there, or it holds something else.
    """
    make_folder(folder)
    entries = [entry for entry in folder.iterdir() if not entry.name.startswith(".")]
    if entries and not (folder / PAGE).is_file():
        raise RunFolderError(f"{folder}: is not empty and holds no {PAGE}; choose another --out")
