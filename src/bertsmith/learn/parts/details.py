"""Part six: the appendix, the gradients underneath, and what a head gives away (A.1 to A.5)."""

from bertsmith.learn.lesson import Text
from bertsmith.learn.parts.part import Part, PartCard, PartLink, PartQuestion, PartSection

PART = Part(
    id="details",
    title=Text("Details", "细节"),
    sections=(
        PartSection(
            Text(
                "**The run.** Adam with a peak rate of {facts.peak_rate}: it rises for {c.warmup:,} steps"
                " ({c.warmup_share:.0%} of them) and falls in a line to nothing. The rise matters: the norms"
                " stand after"
                " the sums, and large first steps throw a deep network off. A batch is {c.batch_tokens:,}"
                " tokens, the run"
                " {c.tokens:,}: up to {c.passes:.0f} passes over the corpus. {c.short_share:.0%} of the steps use"
                " sequences of {c.short} tokens and only the rest {c.long}, because attention costs the square of the"
                " length; that reads {c.saved:.1%} fewer tokens.",
                "**训练过程**。Adam，峰值学习率 {facts.peak_rate}：先用 {c.warmup:,} 步上升"
                "（占 {c.warmup_share:.0%}），再沿直线降到零。上升阶段很重要：归一化在相加之后，"
                "一开始步子太大会把深层网络带偏。一批 {c.batch_tokens:,} 个词元，"
                "全程 {c.tokens:,} 个，至多读 {c.passes:.0f} 遍语料。{c.short_share:.0%} 的步"
                "用长 {c.short} 的序列，其余才用 {c.long}，因为注意力的代价随长度的平方增长；"
                "这样少读 {c.saved:.1%} 的词元。",
            ),
            "schedule",
        ),
        PartSection(
            Text(
                "**The gradients.** Autograd does them, but none is magic: a linear layer, a softmax, a"
                " LayerNorm and a"
                " GELU are four small derivations, and `bertsmith.learn.minibert` writes them out for a"
                " whole layer"
                " ({c.parameters} arrays of parameters). To check one, nudge a parameter and watch the loss: over"
                " {c.count} of them the largest difference is {c.largest:.0e}. Note the bias of the key,"
                " {c.key_bias:.0e}:"
                " it adds the same to every score of a row, and softmax does not see that.",
                "**梯度**。通常由自动求导完成，但并不神秘：线性层、softmax、LayerNorm、GELU 是四个小推导，"
                "`bertsmith.learn.minibert` 为一整层（{c.parameters} 组参数）都写了出来。"
                "检验的办法是把一个参数轻轻一推，"
                "看损失怎么变：{c.count} 处里最大的差是 {c.largest:.0e}。注意 K 的偏置，梯度是 {c.key_bias:.0e}："
                "它给一行的每个分数加上同一个数，softmax 看不出来。",
            ),
            "gradient_check",
        ),
        PartSection(
            Text(
                "**Looking from outside.** Somebody hides an attention head and shows inputs and outputs only."
                " What can"
                " be found? Not W_Q and W_K, but their product, and of that whatever softmax and the inputs let"
                " through: of {c.numbers} numbers all where the tokens reach every direction,"
                " {c.constant_unseen} fewer"
                " where one feature is constant, {c.flat_unseen} fewer where the tokens lie in a plane. The rest is"
                " found to {c.seen_error:.0e}; the unseen part stays free, and two layers that differ in it are one"
                " layer to everybody.",
                "**从外面看**。有人藏起一个注意力头，只给看输入和输出。能找回什么？找不回 W_Q 和 W_K，"
                "只能找回它们的乘积，"
                "而且只限 softmax 和输入让人看见的部分：{c.numbers} 个数里，词元遍布各方向时全部可见，有一维恒定时少"
                " {c.constant_unseen} 个，词元在一个平面内时少 {c.flat_unseen} 个。可见的部分误差不超过"
                " {c.seen_error:.0e}；"
                "看不见的部分是自由的，只在那里不同的两层，对所有人来说是同一层。",
            ),
            "recovered_attention",
        ),
    ),
    questions=(
        PartQuestion(
            Text("Why does the learning rate rise before it falls?", "为什么学习率先升后降？"),
            (
                Text("To save memory at the start.", "为了在开始时省内存。"),
                Text("To see more of the corpus.", "为了多看一些语料。"),
                Text(
                    "Early gradients of a deep post-norm network are large; big steps would throw it off.",
                    "深层 post-norm 网络一开始梯度很大，步子太大会带偏。",
                ),
            ),
            2,
            Text(
                "Adam's second moment, too, is a poor estimate in the first steps.",
                "Adam 的二阶矩在最初几步也估得不准。",
            ),
        ),
        PartQuestion(
            Text("Why are most steps short sequences?", "为什么多数步用短序列？"),
            (
                Text(
                    "Long sequences cost more than their share: attention grows with the square.",
                    "长序列的代价超过比例：注意力随平方增长。",
                ),
                Text("There are few long documents.", "长文档很少。"),
                Text("Short ones have fewer masks to predict.", "短的要预测的遮盖更少。"),
            ),
            0,
            Text(
                "The long ones at the end are there to teach the far positions.",
                "最后的长序列是为了学会远处的位置。",
            ),
        ),
        PartQuestion(
            Text("What can outputs never tell about a head?", "从输出永远看不出一个头的什么？"),
            (
                Text("How strongly its tokens attend to each other.", "词元之间注意力的强弱。"),
                Text("W_Q and W_K apart from each other.", "各自的 W_Q 和 W_K。"),
                Text("Anything about W_V.", "关于 W_V 的一切。"),
            ),
            1,
            Text(
                "W_Q R and W_K R⁻ᵀ give the same scores for every invertible R.",
                "对任何可逆的 R，W_Q R 与 W_K R⁻ᵀ 给出同样的分数。",
            ),
        ),
    ),
    cards=(
        PartCard(
            "details/rate",
            Text("The learning rate of pre-training?", "预训练的学习率？"),
            Text("Peak {facts.peak_rate}, warm-up, then linear decay.", "峰值 {facts.peak_rate}，先预热，再线性下降。"),
        ),
        PartCard(
            "details/batch",
            Text("A batch of pre-training?", "预训练的一批有多大？"),
            Text(
                "{facts.batch_sequences} sequences of {facts.batch_length} tokens: {facts.batch_tokens:,}.",
                "{facts.batch_sequences} 条长 {facts.batch_length} 的序列：{facts.batch_tokens:,} 个词元。",
            ),
        ),
        PartCard(
            "details/softmax",
            Text("The gradient of cross-entropy by the logits?", "交叉熵对 logits 的梯度？"),
            Text("p - y: the probabilities, less one at the truth.", "p - y：概率，在正确处减一。"),
        ),
        PartCard(
            "details/norm",
            Text("What does LayerNorm's gradient leave out?", "LayerNorm 的梯度去掉了什么？"),
            Text(
                "Its parts along the constant vector and along x̂: shifting or stretching a row changes nothing.",
                "沿常数向量和沿 x̂ 的分量：整行平移或拉伸不改变结果。",
            ),
        ),
        PartCard(
            "details/short",
            Text("How long are the sequences?", "序列有多长？"),
            Text(
                "{facts.short_share:.0%} of the steps {facts.short_length}, the rest {facts.batch_length}.",
                "{facts.short_share:.0%} 的步是 {facts.short_length}，其余 {facts.batch_length}。",
            ),
        ),
    ),
    links=(
        PartLink("bertsmith.train.optimizer.learning_rate_at", Text("the rate over time", "学习率"), "appendix"),
        PartLink("bertsmith.train.optimizer.build_optimizer", Text("Adam's settings", "Adam 的设置"), "appendix"),
        PartLink("bertsmith.train.recipe.PreTrainingRecipe.phase_at", Text("short, then long", "先短后长"), "appendix"),
        PartLink("bertsmith.model.block.ACTIVATION_FUNCTIONS", Text("GELU", "GELU"), "transformer"),
    ),
)
