"""Part four: one network, many tasks (§3.2, §4)."""

from bertsmith.learn.lesson import Text
from bertsmith.learn.parts.part import Part, PartCard, PartLink, PartQuestion, PartSection

PART = Part(
    id="fine-tuning",
    title=Text("Fine-tuning", "微调"),
    sections=(
        PartSection(
            Text(
                "A task needs an input of BERT's form and one small layer on top. About whole texts the layer"
                " reads C;"
                " about words or answers it reads every token. Then **all** parameters learn, the new and the"
                " old.\n\n"
                "Count what is new: a classifier of {c.labels} classes adds {c.classifier:,} parameters to"
                " {c.pretrained:,}, that is {c.share:.4%}. An answer in a passage needs {c.span:,}. The old ones"
                " outnumber a classifier's {c.times:,.0f} times, which is why a few thousand labels are enough.",
                "一个任务只需要 BERT 形式的输入，再加上面的一个小层。判断整个文本时读 C；"
                "给词打标签或找答案时读每个词元。"
                "然后**全部**参数一起学习，新的和旧的都学。\n\n"
                "数一数新增了多少：{c.labels} 类的分类器在 {c.pretrained:,} 个参数之上只加 {c.classifier:,} 个，即"
                " {c.share:.4%}。在段落里找答案要 {c.span:,} 个。旧参数是分类器参数的 {c.times:,.0f} 倍，"
                "所以几千条标注就够了。",
            ),
            "head_sizes",
        ),
        PartSection(
            Text(
                "**Answers.** A start vector S and an end vector E score every token; a span from i to j has"
                " the score"
                " S·T_i + E·T_j, where j must not come before i. Below, {c.spans} spans compete and the best, from"
                " token {c.first} to {c.last}, has {c.score:g}. Taking the best start and the best end by themselves"
                " would promise {c.crossed:g}, but where the end comes first that is no span. “No answer” is a"
                " span at"
                " `[CLS]`: S·C + E·C = {c.null:g}. The verdict: {c.verdict}.",
                "**找答案**。起点向量 S 和终点向量 E 给每个词元打分；从 i 到 j 的片段得分是 S·T_i + E·T_j，j"
                " 不能在 i 之前。"
                "下面有 {c.spans} 个片段，最好的是从词元 {c.first} 到 {c.last}，得分 {c.score:g}。"
                "分别取最好的起点和最好的终点，看上去有 {c.crossed:g}，但终点在前时那不是片段。"
                "“没有答案”是 `[CLS]` 处的片段：S·C + E·C = {c.null:g}。结论：{c.verdict}。",
            ),
            "answer_span",
        ),
        PartSection(
            Text(
                "The paper tries few settings: batches of {facts.grid_batches}, rates of {facts.grid_rates}, and"
                " {facts.grid_epochs} epochs, {facts.grid_size} runs in all, and keeps the one that is best on"
                " held-out"
                " examples. Rates are small, for the weights are nearly right already.",
                "论文试的设置不多：批大小 {facts.grid_batches}，学习率 {facts.grid_rates}，轮数 {facts.grid_epochs}，"
                "共 {facts.grid_size} 种，取验证集上最好的。学习率很小，因为权重本来就差不多对了。",
            )
        ),
    ),
    questions=(
        PartQuestion(
            Text("Which parameters learn in fine-tuning?", "微调时哪些参数在学习？"),
            (
                Text("Those of the new layer only.", "只有新加的那一层。"),
                Text("Those of the last block and the new layer.", "最后一层和新加的层。"),
                Text("All of them.", "全部。"),
            ),
            2,
            Text(
                "End to end. Keeping the encoder fixed is the feature-based use, which the paper tries too (§5.3).",
                "端到端。把编码器固定是基于特征的用法，论文也试了（§5.3）。",
            ),
        ),
        PartQuestion(
            Text("What does a tagger read?", "序列标注读什么？"),
            (
                Text(
                    "The state of every token, taken at each word's first piece.",
                    "每个词元的状态，取每个词的第一个词片。",
                ),
                Text("C, once for each tag.", "C，每个标签读一次。"),
                Text("The embeddings below the first block.", "第一层之下的嵌入。"),
            ),
            0,
            Text("C speaks for the whole sequence; a tag belongs to one word.", "C 代表整个序列；标签属于单个词。"),
        ),
        PartQuestion(
            Text("Why can best start and best end not be picked apart?", "为什么不能分别取最好的起点和终点？"),
            (
                Text("Their scores are on different scales.", "它们的分数尺度不同。"),
                Text("The end may come before the start.", "终点可能在起点之前。"),
                Text("It would be too slow.", "太慢了。"),
            ),
            1,
            Text(
                "The best pair with j ≥ i is looked for; the two maxima by themselves need not be such a pair.",
                "要找的是 j ≥ i 的最好一对；两个各自的最大值不一定构成这样一对。",
            ),
        ),
    ),
    cards=(
        PartCard(
            "fine-tuning/new",
            Text("New parameters of a classifier with K classes?", "K 类分类器新增多少参数？"),
            Text("K vectors of length H, and K biases.", "K 个长为 H 的向量，加 K 个偏置。"),
        ),
        PartCard(
            "fine-tuning/span",
            Text("The score of an answer from i to j?", "从 i 到 j 的答案得分？"),
            Text("S·T_i + E·T_j, with j ≥ i.", "S·T_i + E·T_j，j ≥ i。"),
        ),
        PartCard(
            "fine-tuning/null",
            Text("When is there no answer?", "什么时候判为没有答案？"),
            Text(
                "When the best span does not beat S·C + E·C by more than τ, tuned on held-out questions.",
                "最好的片段没有比 S·C + E·C 高出 τ 以上时；τ 在验证集上调。",
            ),
        ),
        PartCard(
            "fine-tuning/grid",
            Text("The settings that the paper tries?", "论文试哪些设置？"),
            Text(
                "Batch {facts.grid_batches}; rate {facts.grid_rates}; epochs {facts.grid_epochs}.",
                "批大小 {facts.grid_batches}；学习率 {facts.grid_rates}；轮数 {facts.grid_epochs}。",
            ),
        ),
    ),
    links=(
        PartLink("bertsmith.finetune.run.fine_tune", Text("fine-tuning, start to end", "微调的全过程"), "fine-tuning"),
        PartLink("bertsmith.model.heads.SequenceClassifier", Text("classes from C", "从 C 读类别"), "fine-tuning"),
        PartLink("bertsmith.model.heads.best_spans", Text("the best answer", "最好的答案"), "fine-tuning"),
        PartLink("bertsmith.finetune.search.PAPER_GRID", Text("the settings to try", "要试的设置"), "appendix"),
    ),
)
