"""Part three: the two tasks that plain text gives for free (§3.1, A.1, A.2)."""

from bertsmith.learn.lesson import Text
from bertsmith.learn.parts.part import Part, PartCard, PartLink, PartQuestion, PartSection

PART = Part(
    id="pre-training",
    title=Text("Pre-training", "预训练"),
    sections=(
        PartSection(
            Text(
                "**Masked LM.** {facts.mask_rate:.0%} of the pieces are chosen, and the network must say what they"
                " were. A chosen piece becomes `[MASK]` in {facts.mask_share:.0%} of the cases, a random piece in"
                " {facts.random_share:.0%}, and stays in {facts.kept_share:.0%}. Why not always `[MASK]`? Because no"
                " text of a task holds a `[MASK]`: if only masked places were ever asked for, the network could leave"
                " all others uncared for.\n\n"
                "On this sentence of {c.pieces} pieces, {c.chosen} are chosen each time. Over {c.draws:,} draws"
                " {c.masked_share:.1%} of the chosen became `[MASK]`, {c.random_share:.1%} another piece, and"
                " {c.kept_share:.1%} stayed.",
                "**遮盖语言模型（MLM）**。选出 {facts.mask_rate:.0%} 的词片，让网络说出它们原来是什么。"
                "被选中的词片有"
                " {facts.mask_share:.0%} 变成 `[MASK]`，{facts.random_share:.0%} 换成随机词片，"
                "{facts.kept_share:.0%} 保持不变。为什么不都用 `[MASK]`？因为任务的文本里没有 `[MASK]`："
                "如果只问被遮住的位置，网络就可以不管其他位置。\n\n"
                "这句话有 {c.pieces} 个词片，每次选 {c.chosen} 个。抽 {c.draws:,} 次，选中的有"
                " {c.masked_share:.1%} 变成"
                " `[MASK]`，{c.random_share:.1%} 换成别的词片，{c.kept_share:.1%} 不变。",
            ),
            "masking",
        ),
        PartSection(
            Text(
                "**From logits to a number.** At a chosen place the network gives a score to each of the"
                " {c.vocabulary:,} pieces. The softmax turns scores into probabilities, and the loss is -log p of the"
                " true piece, averaged over the chosen places. For `{c.word}` it is {c.loss:.4f} nats: as unsure as a"
                " fair choice among {c.perplexity:,.1f} pieces. Knowing nothing costs log V = {c.blind:.4f}; an"
                " untrained network lies about there, and may by chance be above it.",
                "**从 logits 到一个数**。在选中的位置，网络给 {c.vocabulary:,} 个词片各打一个分。softmax"
                " 把分数变成概率，"
                "损失是正确词片的 -log p，在选中的位置上取平均。对 `{c.word}` 来说是 {c.loss:.4f} nats，"
                "相当于在 {c.perplexity:,.1f} 个词片里均匀地猜。一无所知的代价是 log V = {c.blind:.4f}；"
                "未训练的网络大致在这附近，也可能碰巧更高。",
            ),
            "mlm_loss",
        ),
        PartSection(
            Text(
                "**Next sentence.** Many tasks are about two sentences, and words alone do not teach their"
                " relation. So"
                " half of the time B is what really follows A, half of the time a random sentence, and C must tell."
                " Here the truth is “{c.truth}”, its probability {c.probability:.4f}, the loss {c.loss:.4f}; a coin"
                " would pay {c.coin:.4f}. The loss of pre-training is the sum of the two means.",
                "**下一句预测（NSP）**。许多任务与两个句子有关，光靠词学不到句子之间的关系。所以一半时候 B"
                " 真的接在 A 之后，"
                "一半时候 B 是随机的，由 C 来判断。这里的真实情况是“{c.truth}”，它的概率是 {c.probability:.4f}，"
                "损失 {c.loss:.4f}；抛硬币要付 {c.coin:.4f}。预训练的损失是两个平均值之和。",
            ),
            "nsp_loss",
        ),
    ),
    questions=(
        PartQuestion(
            Text(
                "What share of all pieces becomes [MASK] in the end?",
                "最终有多少词片真的变成 [MASK]？",
            ),
            (
                Text("{facts.overall_mask_share:.0%}", "{facts.overall_mask_share:.0%}"),
                Text("{facts.mask_rate:.0%}", "{facts.mask_rate:.0%}"),
                Text("{facts.mask_share:.0%}", "{facts.mask_share:.0%}"),
            ),
            0,
            Text(
                "{facts.mask_rate:.0%} are chosen, and {facts.mask_share:.0%} of those are masked.",
                "选出 {facts.mask_rate:.0%}，其中 {facts.mask_share:.0%} 变成 [MASK]。",
            ),
        ),
        PartQuestion(
            Text(
                "A chosen piece stayed as it is. Does it count in the loss?",
                "一个被选中的词片保持不变。它计入损失吗？",
            ),
            (
                Text("No, the answer is in plain sight.", "不计，答案就摆在那里。"),
                Text("Only if the network is wrong.", "只有网络答错时才计。"),
                Text("Yes, like every chosen piece.", "计，和其他被选中的一样。"),
            ),
            2,
            Text(
                "The network cannot tell a kept piece from a random one, so it has to look at the context of every"
                " word. That is what it is for.",
                "网络分不清“保持不变”和“随机替换”，所以每个词都得结合上下文看。这正是它的用处。",
            ),
        ),
        PartQuestion(
            Text(
                "A next-sentence loss of {facts.coin_loss:.3f} on many pairs means …",
                "在许多句对上，NSP 的损失是 {facts.coin_loss:.3f}，说明……",
            ),
            (
                Text("the network tells nearly all pairs right.", "网络几乎全对。"),
                Text("the network does no better than a coin.", "网络不比抛硬币强。"),
                Text("the network is always wrong.", "网络总是错。"),
            ),
            1,
            Text(
                "It is the logarithm of two, what giving both classes one half costs.",
                "它等于二的对数，即两类各给一半概率的代价。",
            ),
        ),
        PartQuestion(
            Text(
                "Why does a masked LM learn more slowly per step than a left-to-right one?",
                "为什么每走一步，MLM 比从左到右的模型学得慢？",
            ),
            (
                Text(
                    "Only {facts.mask_rate:.0%} of the pieces are predicted.", "只预测 {facts.mask_rate:.0%} 的词片。"
                ),
                Text("Its softmax is larger.", "它的 softmax 更大。"),
                Text("It needs labels.", "它需要标注。"),
            ),
            0,
            Text(
                "The other {facts.unseen_share:.0%} give no loss in that step. The paper finds that the gain"
                " from both"
                " sides outweighs it soon (C.1).",
                "其余 {facts.unseen_share:.0%} 在这一步没有损失。论文发现双向的收益很快就超过了这一点（C.1）。",
            ),
        ),
    ),
    cards=(
        PartCard(
            "pre-training/shares",
            Text("The fates of a chosen piece?", "被选中的词片有哪几种命运？"),
            Text(
                "[MASK] {facts.mask_share:.0%}, a random piece {facts.random_share:.0%}, unchanged"
                " {facts.kept_share:.0%}.",
                "[MASK] {facts.mask_share:.0%}，随机词片 {facts.random_share:.0%}，不变 {facts.kept_share:.0%}。",
            ),
        ),
        PartCard(
            "pre-training/why-not-mask",
            Text("Why is a chosen piece not always masked?", "为什么不总是用 [MASK]？"),
            Text(
                "[MASK] never occurs in fine-tuning; the network must encode ordinary words well too.",
                "微调时没有 [MASK]；网络也要把普通的词编码好。",
            ),
        ),
        PartCard(
            "pre-training/loss",
            Text("The masked-LM loss?", "MLM 的损失？"),
            Text("The mean of -log p(true piece) over the chosen places.", "选中位置上 -log p(正确词片) 的平均。"),
        ),
        PartCard(
            "pre-training/nsp",
            Text("What is next-sentence prediction read from?", "NSP 从哪里读出？"),
            Text(
                "From C, the state of [CLS]; class “is next” or “is random”, half of the pairs each.",
                "从 C，即 [CLS] 的状态；类别是“接着”或“随机”，各占一半。",
            ),
        ),
        PartCard(
            "pre-training/tied",
            Text("Which matrix scores the pieces?", "用哪个矩阵给词片打分？"),
            Text("The token embedding itself: the output is tied to the input.", "就是词嵌入本身：输出与输入共享。"),
        ),
    ),
    links=(
        PartLink("bertsmith.data.stream.masking.mask_tokens", Text("who is hidden", "遮住谁"), "pre-training"),
        PartLink("bertsmith.objectives.masked_lm.MaskedLMLoss", Text("masked-LM loss", "MLM 损失"), "pre-training"),
        PartLink("bertsmith.objectives.next_sentence.NSPLoss", Text("next-sentence loss", "NSP 损失"), "pre-training"),
        PartLink("bertsmith.data.stream.pairs.draw_pairs", Text("drawing A and B", "抽取 A 和 B"), "pre-training"),
        PartLink(
            "bertsmith.objectives.pretraining.PreTrainingObjective", Text("the sum of both", "两者之和"), "appendix"
        ),
    ),
)
