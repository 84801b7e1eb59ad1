"""Part five: what the paper measured, and an ablation of our own that runs while one waits (§4, §5)."""

from bertsmith.learn.lesson import Text
from bertsmith.learn.parts.part import Part, PartCard, PartLink, PartQuestion, PartSection

PART = Part(
    id="experiments",
    title=Text("Experiments", "实验"),
    sections=(
        PartSection(
            Text(
                "The paper fine-tunes one network for sentence pairs and single sentences (GLUE), for answers in a"
                " passage (SQuAD), for choosing an ending (SWAG) and for naming entities (CoNLL). It came out ahead"
                " of what had been built for each of them, and close to it on the last. The larger network is ahead of"
                " the smaller on every task, the smallest data sets included, though it has"
                " {facts.large_times:.1f} times the parameters ({facts.large_millions:.0f} against"
                " {facts.base_millions:.0f} million).\n\n"
                "But which of its ideas does the work? For that one takes a single idea away and leaves the rest: an"
                " **ablation**. The paper takes away next-sentence prediction, then also the reading from the right"
                " (§5.1). Both cost, the second far more.",
                "论文把同一个网络微调到句对与单句（GLUE）、段落中的答案（SQuAD）、"
                "选择结尾（SWAG）和命名实体（CoNLL），"
                "前三类都超过了当时为它们专门设计的方法，最后一类与之接近。大的网络在每个任务上都好于小的，最小的数据集也不例外，"
                "尽管它的参数是 {facts.large_times:.1f} 倍（{facts.large_hundred_millions:.1f} 亿对"
                " {facts.base_hundred_millions:.1f} 亿）。\n\n"
                "但究竟是哪个想法在起作用？办法是每次只拿走一个想法，其余不变，这叫**消融**。论文先拿走下一句预测，"
                "再拿走从右边读（§5.1）。两者都有损失，后者大得多。",
            )
        ),
        PartSection(
            Text(
                "Now our own, live: three networks of one layer learn {c.sentences} short sentences in which"
                " people and"
                " things meet in two orders, `the man reads the letter` and `the letter near the man`. Then"
                " each fills"
                " `{c.probe}`, which none has read.\n\n"
                "The whole one says `{c.whole_top}` and gives verbs {c.whole_verbs:.0%}. The one without"
                " positions sees"
                " a bag of words, the same bag as in `the book near the man`: it says `{c.bag_top}` and gives verbs"
                " {c.bag_verbs:.0%}. The one that reads from the left knows that a verb is due"
                " ({c.left_verbs:.0%}) but"
                " not which, for `book` comes later: `reads` gets {c.left_reads:.0%}, where the whole network"
                " gives it"
                " {c.whole_reads:.0%}.",
                "现在做我们自己的，当场运行：三个单层网络学习 {c.sentences} 个短句，句中的人和物以两种次序相遇："
                "`the man reads the letter` 和 `the letter near the man`。然后让它们填 `{c.probe}`，"
                "谁都没读过这一句。\n\n"
                "完整的网络填 `{c.whole_top}`，动词的概率共 {c.whole_verbs:.0%}。没有位置的网络只看见一袋词，"
                "与 `the book near the man` 是同一袋：它填 `{c.bag_top}`，动词只有 {c.bag_verbs:.0%}。"
                "从左往右读的网络知道该填动词（{c.left_verbs:.0%}），却不知道是哪个，因为 `book` 在后面："
                "`reads` 只得 {c.left_reads:.0%}，而完整的网络给它 {c.whole_reads:.0%}。",
            ),
            "ablation",
        ),
        PartSection(
            Text(
                "A word of caution. One run with one seed is an anecdote: change the seed and look whether the"
                " finding"
                " stays. The paper, too, repeats its fine-tuning runs on the small data sets, some of which"
                " fail by bad"
                " luck.",
                "提醒一句：一个种子跑一次只是个例。换个种子，看结论是否还成立。论文在小数据集上的微调也会多跑几次，"
                "因为有的会碰巧失败。",
            )
        ),
    ),
    questions=(
        PartQuestion(
            Text("What is an ablation?", "什么是消融实验？"),
            (
                Text("Training without regularisation.", "不加正则化的训练。"),
                Text("Taking one part away to see what it was good for.", "拿走一个部分，看它起什么作用。"),
                Text("Training on less and less data.", "用越来越少的数据训练。"),
            ),
            1,
            Text(
                "All else stays as it was, so that a difference can only come from that part.",
                "其余不变，差别就只能来自这个部分。",
            ),
        ),
        PartQuestion(
            Text(
                "Why does a network without positions not find the verb in “{facts.probe}”?",
                "为什么没有位置的网络在“{facts.probe}”里找不到动词？",
            ),
            (
                Text(
                    "The same words stand around “near” in other sentences, in another order.",
                    "同样这些词在别的句子里围着 near，只是次序不同。",
                ),
                Text("It has never seen a verb.", "它从没见过动词。"),
                Text("Its loss does not fall.", "它的损失不下降。"),
            ),
            0,
            Text(
                "To it, both are one bag of words; it can only guess by which is more frequent.",
                "在它看来两者是同一袋词，只能按哪个更常见来猜。",
            ),
        ),
        PartQuestion(
            Text("What hurts more in the paper's ablation?", "论文的消融里，哪个损失更大？"),
            (
                Text("Leaving out next-sentence prediction.", "去掉下一句预测。"),
                Text("Both are without effect.", "两者都没有影响。"),
                Text("Reading from the left only.", "只从左边读。"),
            ),
            2,
            Text(
                "Most of all where single tokens are read, as for answers: a token that has not seen its right side"
                " knows half of its context (§5.1).",
                "在读单个词元的任务上尤其如此，例如找答案：没看过右边的词元只知道一半的上下文（§5.1）。",
            ),
        ),
    ),
    cards=(
        PartCard(
            "experiments/ablation",
            Text("How do you find out what an idea is worth?", "怎样知道一个想法值多少？"),
            Text("Take it away, change nothing else, and measure again.", "拿走它，其余不变，再测一次。"),
        ),
        PartCard(
            "experiments/size",
            Text("What does the paper find about size?", "关于规模，论文发现了什么？"),
            Text(
                "Larger is better on every task, even with few labels, if pre-training was sufficient.",
                "只要预训练充分，越大越好，标注很少的任务也一样。",
            ),
        ),
        PartCard(
            "experiments/positions",
            Text("What is attention without positions?", "没有位置的注意力是什么？"),
            Text("A function of a bag of words.", "一袋词的函数。"),
        ),
        PartCard(
            "experiments/features",
            Text("How good are frozen features?", "冻结的特征有多好？"),
            Text(
                "Close to fine-tuning, when the last few layers are joined (§5.3).",
                "把最后几层拼接起来，接近微调的效果（§5.3）。",
            ),
        ),
    ),
    links=(
        PartLink("bertsmith.objectives.causal_lm.CausalLMLoss", Text("left to right", "从左到右"), "ablations"),
        PartLink(
            "bertsmith.model.architectures.BertForMaskedLM", Text("no next sentence", "没有下一句预测"), "ablations"
        ),
        PartLink("bertsmith.model.features.LayerChoice", Text("frozen features", "冻结的特征"), "ablations"),
        PartLink("bertsmith.model.config.BertConfig.named", Text("sizes", "尺寸"), "ablations"),
    ),
)
