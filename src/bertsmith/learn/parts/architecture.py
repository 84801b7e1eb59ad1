"""Part two: from a text to vectors, and how tokens read one another (§3)."""

from bertsmith.learn.lesson import Text
from bertsmith.learn.parts.part import Part, PartCard, PartLink, PartQuestion, PartSection

PART = Part(
    id="architecture",
    title=Text("Input and architecture", "输入与结构"),
    sections=(
        PartSection(
            Text(
                "A text is cut into **pieces** of a vocabulary ({facts.base_vocabulary:,} in the release,"
                " {c.vocabulary:,} here). A word that is no piece itself is cut from the left: the longest beginning"
                " that is one is taken, then the longest that goes on from there, written with `##`, to the end of the"
                " word; where nothing fits, the whole word becomes `[UNK]`. Pieces of `{c.word}`: {c.count}, found with"
                " {c.tries} look-ups. So a limited vocabulary reads words it has never seen.",
                "文本先切成词表里的**词片**（官方代码的词表有 {facts.base_vocabulary:,} 个，这里有 {c.vocabulary:,} 个"
                "）。不在词表里的词从左切起：先取词表里最长的开头，再从断开处取最长的一段（写作 `##` 加这一段），直到词"
                "尾；哪里都对不上时，整个词变成 `[UNK]`。`{c.word}` 的词片数是 {c.count}，查词表 {c.tries} 次。"
                "这样，有限的词表也能读没见过的词。",
            ),
            "pieces_of_a_word",
        ),
        PartSection(
            Text(
                "`[CLS]` goes"
                " in front of the pieces, `[SEP]` behind each sentence, so that one text and a pair of texts have the"
                " same form.\n\n"
                "Each token becomes the sum of three learned vectors: what it is (token), which sentence it"
                " belongs to"
                " (segment), where it stands (position). Below, the pair makes {c.tokens} tokens; the sum is"
                " worked out"
                " for `{c.piece}` at place {c.place}. LayerNorm then brings its mean to zero and its spread to one.",
                "词片的最前面放 `[CLS]`，"
                "每个句子后面放 `[SEP]`，于是单个文本和句对的形式相同。\n\n"
                "每个词元是三个学得的向量之和：它是什么（词）、属于哪一句（段）、在什么位置（位置）。下面的句对共"
                " {c.tokens} 个词元，以第 {c.place} 个位置的 `{c.piece}` 为例算出这个和。"
                "之后 LayerNorm 把均值变为零，离散程度变为一。",
            ),
            "input_sum",
        ),
        PartSection(
            Text(
                "Then come layers of **self-attention**. A token asks with its query, is found by its key and hands"
                " over its value: `Z = softmax(Q Kᵀ / √D) V`. Here it is for the tokens of X, D = {c.size}. The last"
                " token's product with itself is {c.own_score:g}; divided by √D it is {c.own_scaled:.4f}, and"
                " after the"
                " softmax it takes {c.own_weight:.1%} of its new state from itself and {c.first_weight:.1%} from the"
                " first. Without the division the products grow with √D, the softmax saturates, and its gradient"
                " vanishes.",
                "接下来是多层**自注意力**。词元用 Q 提问，凭 K 被找到，交出 V：`Z = softmax(Q Kᵀ / √D) V`。"
                "下面对 X 的各个词元一步步算出来，D = {c.size}。最后一个词元与自己的点积是 {c.own_score:g}，"
                "除以 √D 得 {c.own_scaled:.4f}；经过 softmax，它的新状态有 {c.own_weight:.1%} 来自自己，"
                "{c.first_weight:.1%} 来自第一个词元。如果不除，点积随 √D 增大，softmax 饱和，梯度消失。",
            ),
            "two_tokens",
        ),
        PartSection(
            Text(
                "One softmax makes one mixture. To look for several things at once, the width is divided among"
                " **heads**: each does the same with a query, key and value of its own, narrower (D = {c.size} of"
                " {c.width} here), and W_O mixes what they found, laid side by side. Below, of the first token the last"
                " one takes {c.first_weight:.1%} in one head and {c.second_weight:.1%} in the other. BERT base has"
                " {facts.base_heads} heads of {facts.base_head_size}; together they cost what one head of the whole"
                " width would.",
                "一个 softmax 只给出一种混合。想同时找几样东西，就把宽度分给几个**头**：每个头用自己的 Q、K、V 做同样的"
                "事，只是窄一些（这里总宽 {c.width}，每个头 D = {c.size}），再把各自找到的并排放好，由 W_O 混合。"
                "下面最后一个词元从第一个词元取的份额，在一个头里是 {c.first_weight:.1%}，在另一个头里是"
                " {c.second_weight:.1%}。BERT base 有 {facts.base_heads} 个宽 {facts.base_head_size} 的头，"
                "合起来的代价与一个全宽的头相同。",
            ),
            "two_heads",
        ),
        PartSection(
            Text(
                "A **block** is attention and then a feed-forward layer. Neither replaces a token's state: what it"
                " gives is added to it (the **residual**), and LayerNorm follows the sum. The feed-forward layer treats"
                " each token by itself: wider, {c.inner} numbers from {c.hidden}, bent by `{c.function}`, and back. Of"
                " these numbers {c.negative_share:.0%} are negative for `{c.piece}`; GELU lets little of them through,"
                " yet smoothly, so that a gradient comes back. Without the bend two matrices would be no more than one."
                " The state that leaves the block still has a cosine of {c.cosine:.2f} with the one that entered.",
                "**一层**是先注意力，后前馈层。两者都不替换词元的状态：给出的结果加回原状态（**残差**），相加之后做"
                " LayerNorm。前馈层单独处理每个词元：从 {c.hidden} 个数变宽到 {c.inner} 个，用 `{c.function}` 弯一下，"
                "再变回来。`{c.piece}` 的这些数里有 {c.negative_share:.0%} 是负的，GELU 只放过很少一点，但是光滑地放，"
                "所以梯度传得回来。没有这一弯，两个矩阵不过是一个矩阵。离开这一层的状态与进入时的余弦仍有"
                " {c.cosine:.2f}。",
            ),
            "first_block",
        ),
        PartSection(
            Text(
                "`[CLS]` is no word, and so its state is free to **summarise**. Hide each of the {c.words}"
                " words in turn:"
                " every time that C, the final state of `[CLS]`, moves, the word has reached it ({c.moved} of"
                " {c.words};"
                " most of all `{c.most}`). Now cut the paths into `[CLS]`, so that it reads itself alone:"
                " {c.moved_cut} of {c.words} words reach it. Attention is the only way in. That C summarises what a"
                " task needs is not given; it is learned, by next-sentence prediction and by fine-tuning.",
                "`[CLS]` 不是词，它的状态可以用来**概括**全句。把 {c.words} 个词轮流遮住，看 C（`[CLS]` 的最终状态）"
                "是否移动：移动说明这个词到达了它（{c.words} 个中有 {c.moved} 个，影响最大的是 `{c.most}`）。"
                "再切断通往 `[CLS]` 的路径，让它只读自己：{c.words} 个词中有 {c.moved_cut} 个能到达。"
                "注意力是唯一的入口。"
                "至于 C 概括的是不是任务所需，并非天生如此，而是靠下一句预测和微调学来的。",
            ),
            "cls_summary",
        ),
        PartSection(
            Text(
                "How large is it all? Count matrix by matrix. This size has {c.without_heads:,} parameters"
                " without its"
                " pre-training heads, {c.total:,} with them. {c.words_share:.0%} of all are word vectors, and the"
                " feed-forward layer takes {c.feed_forward_share:.0%} of each block, far more than attention.",
                "这一切有多大？一个矩阵一个矩阵地数。这个尺寸不含预训练的两个头有 {c.without_heads:,} 个参数，"
                "含头有 {c.total:,} 个。词向量占全部的 {c.words_share:.0%}；每一层里前馈层占"
                " {c.feed_forward_share:.0%}，远多于注意力。",
            ),
            "parameters",
        ),
    ),
    questions=(
        PartQuestion(
            Text("Why are the scores divided by √D?", "为什么分数要除以 √D？"),
            (
                Text("So that each row adds up to one.", "为了让每行之和为一。"),
                Text("So that heads of different layers can be compared.", "为了让不同层的头可以比较。"),
                Text(
                    "A sum of D products spreads with √D; large scores saturate the softmax.",
                    "D 个乘积之和的离散程度随 √D 增大，分数过大会使 softmax 饱和。",
                ),
            ),
            2,
            Text(
                "A saturated softmax is nearly constant, so hardly any gradient comes back. The row sums are the"
                " softmax's doing, whatever the scale.",
                "饱和的 softmax 几乎是常数，梯度几乎传不回来。每行之和为一是 softmax 的作用，与缩放无关。",
            ),
        ),
        PartQuestion(
            Text(
                "Without position embeddings, the words of a sentence are shuffled. What happens to a word's state?",
                "没有位置嵌入时，把句子里的词打乱。一个词的状态会怎样？",
            ),
            (
                Text("It stays the same.", "不变。"),
                Text("It changes at random.", "随机变化。"),
                Text("It changes only in the first layer.", "只在第一层变化。"),
            ),
            0,
            Text(
                "Attention adds over a set; nothing in it depends on the order. Part five shows what goes wrong.",
                "注意力是对一个集合求加权和，其中没有任何东西依赖顺序。第五部分会看到后果。",
            ),
        ),
        PartQuestion(
            Text("Where do most parameters of a block sit?", "一层的参数大多在哪里？"),
            (
                Text("In query, key and value.", "在 Q、K、V 里。"),
                Text("In the feed-forward layer.", "在前馈层里。"),
                Text("In the norms.", "在归一化里。"),
            ),
            1,
            Text(
                "It is {facts.inner_times} times as wide as the hidden state, and goes there and back; attention has"
                " four square matrices.",
                "它的宽度是隐藏状态的 {facts.inner_times} 倍，一去一回；注意力是四个方阵。",
            ),
        ),
        PartQuestion(
            Text(
                "The segment embedding of a text that stands alone?",
                "单独一个文本的段嵌入是什么？",
            ),
            (
                Text("None is added.", "不加。"),
                Text("That of sentence A, for every token.", "每个词元都是句子 A 的。"),
                Text("It alternates from token to token.", "逐个词元交替。"),
            ),
            1,
            Text("A single text is a sentence A without a B.", "单个文本就是没有 B 的句子 A。"),
        ),
    ),
    cards=(
        PartCard(
            "architecture/input",
            Text("What are the three embeddings of a token?", "词元的三种嵌入是什么？"),
            Text("Token, segment and position; they are added, then normalised.", "词、段、位置；相加之后归一化。"),
        ),
        PartCard(
            "architecture/attention",
            Text("The equation of attention?", "注意力的公式？"),
            Text("Z = softmax(Q Kᵀ / √D) V", "Z = softmax(Q Kᵀ / √D) V"),
        ),
        PartCard(
            "architecture/base",
            Text("L, H and A of BERT base?", "BERT base 的 L、H、A？"),
            Text(
                "{facts.base_layers} layers, {facts.base_hidden} hidden, {facts.base_heads} heads of"
                " {facts.base_head_size}: about {facts.base_millions:.0f} million parameters.",
                "{facts.base_layers} 层，隐藏宽度 {facts.base_hidden}，{facts.base_heads} 个宽 {facts.base_head_size}"
                " 的头，共约 {facts.base_hundred_millions:.1f} 亿个参数。",
            ),
        ),
        PartCard(
            "architecture/block",
            Text("What is in a block?", "一层里有什么？"),
            Text(
                "Attention, then a feed-forward layer; around each a residual and a LayerNorm after the sum.",
                "先注意力，后前馈层；每个外面都有残差，相加之后做 LayerNorm。",
            ),
        ),
        PartCard(
            "architecture/cls",
            Text("What is C?", "C 是什么？"),
            Text(
                "The last layer's state of [CLS]; what is said about the whole sequence is read from it.",
                "[CLS] 在最后一层的状态；关于整个序列的判断都从它读出。",
            ),
        ),
    ),
    links=(
        PartLink("bertsmith.model.embeddings.BertEmbedding", Text("the three embeddings", "三种嵌入"), "model"),
        PartLink("bertsmith.model.attention.MultiHeadSelfAttention", Text("attention", "注意力"), "transformer"),
        PartLink("bertsmith.model.block.TransformerBlock", Text("a block", "一层"), "transformer"),
        PartLink("bertsmith.model.sizes.ParameterCounts", Text("the count", "参数的计数"), "model"),
        PartLink(
            "bertsmith.tokenizer.encoding.build_rows", Text("[CLS] A [SEP] B [SEP]", "[CLS] A [SEP] B [SEP]"), "model"
        ),
    ),
)
