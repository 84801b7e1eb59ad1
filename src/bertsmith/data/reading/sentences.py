"""Paragraph -> sentences, for English and Chinese, without a model.

- every run of stops is a candidate, and what stands around it decides: the word before it (a title, an initial, a
  number) and the first letter after it
- when in doubt, no cut: two sentences taken as one cost next-sentence prediction little, half a sentence teaches it
  nonsense
- only white space is ever lost: the sentences put together again are the paragraph
- linear time: each candidate looks at a bounded stretch of text, so a page of dots costs no more than a page of prose

Decided: a Chinese semicolon does not end a sentence, nor does an ellipsis `……` inside running text; stops inside
`《…》` belong to the title.
"""

import re
from collections.abc import Iterator

MAX_SENTENCE_LENGTH = 2000
_LOOK_BEHIND = 24  # longer than any abbreviation
_LOOK_AHEAD = 24  # quotes, brackets, dashes and bullets that may stand before the first letter of a sentence
_TITLE_LENGTH = 60  # how far a title in 《》 is looked back for

_IDEOGRAPH = re.compile("[\u2e80-\u2fff\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]")
# One run of stops with all that closes behind it. No look-ahead: it would make long runs quadratic.
_STOPS = re.compile("([.!?…．。！？｡]+)([\"'”’»)\\]」』）】〕》〉]*)")
_ELLIPSIS = re.compile(r"…+|\.{2,}")
_FULL_WIDTH_STOP = re.compile("[。！？｡]")
# In tokenised text the closing quote or bracket is a token of its own: `... the bill . " The ...`
_SPACED_CLOSERS = re.compile(r"(?: (?:\"|''|”|’|\)|\])(?= |$)){1,4}")
_FOOTNOTES = re.compile(r"(?:\[\d{1,3}\]){1,4}")
_FIRST_LETTER = re.compile(r"[\W_]*([^\W_])")
_PLACEHOLDER = re.compile(r"<\w{1,16}>|\[[A-Z]{1,16}\]")  # <unk>, [UNK]: a word whose first letter nobody knows
_GOES_ON = frozenset(",;:.!?)]}%/&=+，、；：。！？）】」』”…》〉")
_WORD_BEFORE = re.compile("[0-9A-Za-z\u00c0-\u024f.&'’]+$")  # without `_`, which marks italics, and without ideographs
_CLAUSE_ENDS = "；;，,、：:"


def _words(listed: str) -> frozenset[str]:
    return frozenset(listed.split())


# All in lower case; a single letter in capitals is an initial instead. These stand before a name, so never at an end.
_BEFORE_NAME = _words(
    "mr mrs ms messrs mme mlle mgr dr prof rev revd hon st ste sts gen lt col maj capt cpt cmdr adm sgt cpl pvt gov "
    "sen rep pres supt insp mt ft fr wm chas jas geo thos jos robt edw"
)
_NEVER_LAST = _words("e.g i.e eg ie viz cf v vs approx adj adv n v.t v.i")
_BEFORE_NUMBER = _words(
    "no nos nr vol vols p pp pg ch chap fig figs sec sect sc art eq eqs op ver par pt bk ca c l ll "
    "jan feb mar apr jun jul aug sep sept oct nov dec"
)
_OFTEN_LAST = _words("jr sr inc ltd co corp bros esq etc &c al ph.d")
_NOT_PLAIN = _BEFORE_NAME | _NEVER_LAST | _BEFORE_NUMBER | _OFTEN_LAST
_ENUMERATOR = re.compile(r"[(\[]?(?:\d{1,3}|[A-Za-z]|[IVXLC]{1,7}|[ivxlc]{1,7})[)\]]?")
_DOTTED_LETTERS = re.compile(r"[^\W\d_](?:\.[^\W\d_])*")
_ROMAN_NUMBER = re.compile(r"[IVXLC]+\b|[ivxlc]+\b")
# Words that open a sentence far more often than they follow an initial, `U.S.` or `etc.`
_OPENING_WORD = re.compile(
    r"(?:The|This|That|These|Those|There|Then|Thus|They|Their|He|She|It|Its|His|Her|We|Our|You|Your|My|In|On|At|As|"
    r"After|Before|During|When|While|Where|Who|What|Why|How|But|And|Or|So|Yet|If|For|From|By|With|To|Although|However|"
    r"Though|Because|Since|Some|Many|Most|Both|Each|All|No|Not|Now|Here|A|An|One|Another|Once|Let|Is|Are|Was|Were|Do|"
    r"Did|I)\b(?!\.)"
)


def split_sentences(paragraph: str) -> list[str]:
    """Splits a paragraph of English or Chinese into sentences.

    A sentence keeps its stop and the quotes and brackets closed after it. English stops need white space after them (so
    `example.com` and `3.14` stay whole) and a following word that could open a sentence, so `"Go!" he said.` is one
    sentence. Chinese stops end a sentence wherever they stand. A stretch of more than `MAX_SENTENCE_LENGTH` characters
    without any end is cut at white space, after a comma, or hard, in this order of preference.

    No sentence is empty. Each stretch of white space becomes one space; every other character stays.
    """
    text = " ".join(paragraph.split())
    sentences: list[str] = []
    start = 0
    for end in _ends(text):
        sentences += _bounded(text[start:end].strip())
        start = end
    return sentences + _bounded(text[start:].strip())


def _ends(text: str) -> Iterator[int]:
    """Finds where each sentence of `text` but the last ends."""
    # 全小写的语料没有大写字母可依，句首小写也算新句
    caseless = text.islower()
    quotes = _QuoteCounter(text)
    start = 0
    for match in _STOPS.finditer(text):
        end = match.end()
        if _is_plain_end(text, end, start):
            yield end
            start = end
            continue
        if end == len(text):
            return
        if match.start() - start <= _LOOK_BEHIND and not _FIRST_LETTER.match(text, start, match.start()):
            continue  # nothing has been said yet: `... And then`
        if _FULL_WIDTH_STOP.search(match.group(1)):
            end = _full_width_end(text, match, quotes)
        elif text[end] not in " [":
            # 汉字之间的半角句号、问号后面没有空格；别处没有空格的点多是小数、网址或文件名
            before = match.start() > 0 and _IDEOGRAPH.match(text, match.start() - 1)
            inside = not before or not _IDEOGRAPH.match(text, end) or "…" in match.group(1)
            end = -1 if inside else _before_opening_quote(match, quotes)
        else:
            end = _spaced_end(text, match, start, quotes, caseless=caseless)
        if end > start:
            yield end
            start = end


def _is_plain_end(text: str, end: int, start: int) -> bool:
    """Whether the stop before `end` is the common one: ordinary word, one stop, space, capital letter."""
    if not "A" <= text[end + 1 : end + 2] <= "Z" or text[end] != " " or text[end - 1] not in ".!?":
        return False
    space = text.rfind(" ", start, end)
    word = text[space + 1 : end - 1]
    # 词前还有别的词，才不会是 `IV. The voyage` 这样的编号
    return len(word) > 1 and space > start + 1 and word.isascii() and word.isalpha() and word.lower() not in _NOT_PLAIN


def _full_width_end(text: str, match: re.Match[str], quotes: "_QuoteCounter") -> int:
    """Where the sentence ends that a run with `。！？` in it may close, or -1."""
    begin, end = match.span()
    title = max(0, begin - _TITLE_LENGTH)
    # 书名号里的问号、叹号属于书名（《你好，李焕英！》），不是句末
    if "》" in match.group(2) or text.rfind("《", title, begin) > text.rfind("》", title, begin):
        return -1
    end = _before_opening_quote(match, quotes)
    following = text[end + 1 : end + 2] if text[end] == " " else text[end]
    return -1 if following in _GOES_ON or following == "—" else end


def _spaced_end(text: str, match: re.Match[str], start: int, quotes: "_QuoteCounter", *, caseless: bool) -> int:
    """Where the sentence ends that a run of stops with white space or a footnote after it may close, or -1."""
    begin, end = match.span()
    if text[end] == "[":
        footnotes = _FOOTNOTES.match(text, end)
        end = footnotes.end() if footnotes else end
    elif begin > 0 and text[begin - 1] == " ":
        # 分好词的文本里引号两边都有空格，直引号是开是合只能数前面引号的奇偶
        closers = _SPACED_CLOSERS.match(text, end)
        if closers and not ('"' in closers.group() and quotes.balanced_at(text.index('"', end))):
            end = closers.end()
    if end == len(text) or text[end] != " " or text[end + 1] in _GOES_ON:
        return -1

    first = _FIRST_LETTER.match(text, end + 1, end + 1 + _LOOK_AHEAD)
    if first is None:
        return -1
    letter = first.start(1)
    if not _PLACEHOLDER.match(text, end + 1):
        # 小写开头说明句子没完（"Go!" he said.）；iPhone 这类词首字母后是大写，不算小写
        goes_on = text[letter].islower() and not text[letter + 1 : letter + 2].isupper()
        if goes_on and not caseless:
            return -1
    stops, closers_attached = match.groups()
    if stops == "." and not closers_attached and not _may_end(text, begin, start, letter):
        return -1
    if _ELLIPSIS.fullmatch(stops) and text.startswith(("I ", "I'", "I’"), letter):
        return -1  # a hesitation: `I... I do not know`
    return end


def _may_end(text: str, dot: int, start: int, letter: int) -> bool:
    """Whether a single full stop can end a sentence, by the word before it."""
    if dot - start <= _LOOK_BEHIND and _ENUMERATOR.fullmatch(text[start:dot].strip()):
        return False  # `1. First`, `IV. The voyage`: the number belongs to what it numbers
    before = _WORD_BEFORE.search(text[max(start, dot - _LOOK_BEHIND) : dot].rstrip(" "))
    word = before.group() if before else ""
    word = word if len(word) == 1 else word.lower()
    if word in _BEFORE_NAME or word in _NEVER_LAST:
        return False
    if word in _BEFORE_NUMBER:
        roman = _ROMAN_NUMBER.match(text, letter)
        is_roman = roman is not None and not (word == "no" and roman.group() == "I")  # `He said no. I left.`
        return not (text[letter].isdigit() or is_roman or _PLACEHOLDER.match(text, letter - 1))
    if word in _OFTEN_LAST or _DOTTED_LETTERS.fullmatch(word):
        return _OPENING_WORD.match(text, letter) is not None
    return True


def _before_opening_quote(match: re.Match[str], quotes: "_QuoteCounter") -> int:
    """The end of a run of stops and closers, less a straight quote that opens what follows: `他走了。"好"`."""
    position = match.group(2).find('"')
    if position >= 0 and quotes.balanced_at(match.start(2) + position):
        return match.start(2) + position
    return match.end()


class _QuoteCounter:
    """Counts straight double quotes from left to right, each stretch of text once."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0
        self._count = 0

    def balanced_at(self, position: int) -> bool:
        """Whether every quote before `position` is closed; positions must not go back."""
        self._count += self._text.count('"', self._position, position)
        self._position = position
        return self._count % 2 == 0


def _bounded(sentence: str) -> list[str]:
    """Cuts a sentence that never ends into pieces of at most `MAX_SENTENCE_LENGTH` characters."""
    pieces = []
    start = 0
    while len(sentence) - start > MAX_SENTENCE_LENGTH:
        middle, last = start + MAX_SENTENCE_LENGTH // 2, start + MAX_SENTENCE_LENGTH
        end = sentence.rfind(" ", middle, last)
        if end < 0:
            end = max(sentence.rfind(mark, middle, last) for mark in _CLAUSE_ENDS) + 1 or last
        pieces.append(sentence[start:end])
        start = end + (sentence[end] == " ")
    if start < len(sentence):
        pieces.append(sentence[start:])
    return pieces
