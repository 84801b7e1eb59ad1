"""Part one: why read both ways, and why pre-train at all (§1, §2)."""

from bertsmith.learn.lesson import Text
from bertsmith.learn.parts.part import Part, PartCard, PartLink, PartQuestion, PartSection

PART = Part(
    id="why",
    title=Text("Why", "为什么"),
    sections=(
        PartSection(
            Text(
                "Labelled text is scarce and plain text is not. So a network first learns from plain text alone"
                " (**pre-training**), and only then from the few labels of a task (**fine-tuning**). Before BERT,"
                " what was carried over was either a set of fixed vectors for another network to use"
                " (*feature-based*), or a whole network that read from left to right (*fine-tuning*, as GPT"
                " does).\n\n"
                "Reading in one direction is a habit of language models: predict the next word from those before it."
                " But a reader who must tag a word, or find an answer, has the whole sentence in front of them."
                " What comes after a word says as much about it as what comes before.",
                "有标注的文本少，纯文本却很多。所以先让网络只从纯文本学习（**预训练**），"
                "再从任务的少量标注学习（**微调**）。"
                "在 BERT 之前，迁移过来的要么是一组固定的向量，交给另一个网络使用（*基于特征*），"
                "要么是整个网络，但只从左往右读（*微调*，如 GPT）。\n\n"
                "只朝一个方向读，是语言模型的习惯：用前面的词预测下一个词。可是给词打标签、在文中找答案的人，"
                "整句话就摆在眼前。一个词后面的内容，和前面的内容一样能说明它。",
            )
        ),
        PartSection(
            Text(
                "Here is the difference as a measurement. One word of a sentence, `{c.word}`, is changed to"
                " `{c.other}`,"
                " and every token's final state is compared. Reading left to right, only {c.changed_left} of"
                " {c.tokens}"
                " tokens notice: those before the change cannot know of it, whatever the weights are. Reading both"
                " ways, {c.changed_both} of {c.tokens} do.",
                "下面把这个差别量出来。把句子里的 `{c.word}` 换成 `{c.other}`，再比较每个词元最后的状态。"
                "从左往右读时，"
                "{c.tokens} 个词元中只有 {c.changed_left} 个察觉：改动之前的词元无论权重如何都不可能知道。"
                "双向阅读时，{c.tokens} 个中有 {c.changed_both} 个察觉。",
            ),
            "both_sides",
        ),
        PartSection(
            Text(
                "Why had nobody simply read both ways? Because a deep network that reads both ways sees the"
                " word it is"
                " to predict: one layer lets the neighbours read it, the next lets it read the neighbours. BERT's way"
                " out is to **hide** some words and to ask for those only. That is the masked language model of part"
                " three.",
                "为什么以前不干脆双向阅读？因为深层网络一旦双向，就会看见要预测的词本身：一层让邻居读到它，"
                "下一层它再从邻居那里读回来。BERT 的办法是把一些词**遮住**，只问这些词是什么。"
                "这就是第三部分的遮盖语言模型。",
            )
        ),
    ),
    questions=(
        PartQuestion(
            Text(
                "Why can a deep network not simply be trained to predict each word from both sides?",
                "为什么不能直接训练一个深层网络，从两侧预测每个词？",
            ),
            (
                Text("Reading both ways takes too much memory.", "双向阅读占用的内存太多。"),
                Text("Through its neighbours a word would see itself.", "词会通过邻居看见自己。"),
                Text("The words on the right are rarer.", "右边的词更少见。"),
            ),
            1,
            Text(
                "With two layers or more there is a path from a word to its neighbour and back, so that the answer is"
                " in the input. Hiding the word cuts it.",
                "有两层以上时，就有一条从词到邻居再回到自身的路径，答案就在输入里。把词遮住，这条路才断。",
            ),
        ),
        PartQuestion(
            Text(
                "In a left-to-right model, the last word of a sentence is changed. Whose state changes?",
                "在从左往右的模型里，句子的最后一个词变了。谁的状态会变？",
            ),
            (
                Text("That of every token.", "所有词元的。"),
                Text("That of the first token only.", "只有第一个词元的。"),
                Text("That of the last word and of what follows it.", "最后一个词和它之后的词元的。"),
            ),
            2,
            Text(
                "A token reads itself and those before it. What comes later cannot reach it in any layer.",
                "词元只读自己和前面的词元。后面的内容在任何一层都到不了它。",
            ),
        ),
        PartQuestion(
            Text("What does the fine-tuning approach carry over to a task?", "微调方法把什么带到任务里？"),
            (
                Text("All weights, as a starting point that goes on learning.", "全部权重，作为继续学习的起点。"),
                Text("Fixed vectors, one for each word of the vocabulary.", "固定的向量，词表中每个词一个。"),
                Text("The labels of other tasks.", "其他任务的标注。"),
            ),
            0,
            Text(
                "Feature-based methods keep the vectors fixed and train another network over them; fine-tuning trains"
                " the pre-trained network itself.",
                "基于特征的方法把向量固定，在上面另训一个网络；微调则继续训练预训练好的网络本身。",
            ),
        ),
    ),
    cards=(
        PartCard(
            "why/pre-training",
            Text("What is pre-training?", "什么是预训练？"),
            Text(
                "Learning from plain text, without labels, before any task is known.",
                "在知道任务之前，从没有标注的纯文本中学习。",
            ),
        ),
        PartCard(
            "why/two-ways",
            Text("Two ways to use a pre-trained network?", "使用预训练网络的两种方式？"),
            Text(
                "Feature-based: its vectors are fixed inputs of another network. Fine-tuning: its weights are the"
                " start, and all of them go on learning.",
                "基于特征：它的向量是另一个网络的固定输入。微调：它的权重是起点，全部继续学习。",
            ),
        ),
        PartCard(
            "why/both-ways",
            Text("What does bidirectional mean in BERT?", "BERT 的“双向”是什么意思？"),
            Text(
                "In every layer each token reads all tokens of its sequence, left and right.",
                "在每一层，每个词元都读取序列中左右所有的词元。",
            ),
        ),
        PartCard(
            "why/hide",
            Text("Why are words hidden?", "为什么要遮住词？"),
            Text(
                "Otherwise a deep bidirectional network sees the very word it is to predict.",
                "否则深层双向网络会看见要预测的那个词本身。",
            ),
        ),
    ),
    links=(
        PartLink(
            "bertsmith.model.attention.MultiHeadSelfAttention",
            Text("every token reads every token", "每个词元读取所有词元"),
            "model",
        ),
        PartLink(
            "bertsmith.model.pretrained.PretrainedBert.from_pretrained",
            Text("pre-trained weights as a start", "以预训练权重为起点"),
            "idea",
        ),
        PartLink("bertsmith.model.features.LayerFeatures", Text("the feature-based use", "基于特征的用法"), "idea"),
    ),
)
