"""The village in Chinese: pairs of sentences for models that read one sequence and write another.

A sentence joins two captions (`stories.CAPTIONS`); its translation is exact and computed by rule. The languages differ
as real ones do: the place stands before the verb, "A while B" becomes "B的时候，A", and soup is drunk, not eaten.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from bertsmith.seeding import generator
from bertsmith.tinyworld.stories import CAPTIONS, draw_facts, fill_pattern

CHINESE_CAPTIONS = dict(
    zip(
        CAPTIONS,
        (
            "{noun}吃{food}",
            "{noun}读{reading}",
            "{noun}{work_verb}{work_object}",
            "{noun}喂{animal}",
            "{noun}在{place}看见{animal}",
            "{animal}在{place}睡觉",
        ),
        strict=True,
    )
)
"""Caption → the same in Chinese, by the names of its blanks."""

JOINED = {"{a} and {b}": "{a}，{b}", "{a} while {b}": "{b}的时候，{a}"}
"""How two captions become a sentence, and how its translation is put together."""

_WORDS = """
man 男人 woman 女人 book 书
barn 谷仓 field 田里 stable 马厩 cow 牛 sheep 绵羊 horse 马 goat 山羊 cheese 奶酪 butter 黄油 corn 玉米 potato 土豆
stacks 堆 hay 干草 mends 修 fence 篱笆 ploughs 犁 soil 地 almanac 历书
pier 码头 lighthouse 灯塔 beach 沙滩 crab 螃蟹 gull 海鸥 seal 海豹 turtle 海龟 herring 鲱鱼 oyster 牡蛎 shrimp 虾
seaweed 海带 casts 撒 net 网 paints 漆 boat 船 ties 系 rope 绳子 chart 海图
cabin 木屋 clearing 林间空地 cave 山洞 fox 狐狸 owl 猫头鹰 bear 熊 squirrel 松鼠 mushroom 蘑菇 chestnut 栗子
blackberry 黑莓 root 根茎 chops 劈 wood 木柴 follows 跟着 trail 足迹 lights 生 fire 火 legend 传说
bakery 面包房 shop 商店 square 广场 mouse 老鼠 cat 猫 sparrow 麻雀 pigeon 鸽子 bread 面包 cake 蛋糕 bun 小圆面包
pie 馅饼 kneads 揉 dough 面团 sweeps 扫 floor 地板 fills 装满 basket 篮子 recipe 菜谱
classroom 教室 library 图书馆 yard 院子 hamster 仓鼠 parrot 鹦鹉 rabbit 兔子 goldfish 金鱼 sandwich 三明治 biscuit 饼干
apple 苹果 yogurt 酸奶 writes 写 lesson 作业 cleans 擦 board 黑板 draws 画 picture 图画 poem 诗
orchard 果园 greenhouse 温室 lawn 草坪 bee 蜜蜂 hedgehog 刺猬 snail 蜗牛 butterfly 蝴蝶 pear 梨 plum 李子 carrot 胡萝卜
honey 蜂蜜 waters 浇 rose 玫瑰 plants 种 seed 种子 trims 剪 hedge 树篱 catalogue 目录
peak 山顶 valley 山谷 hut 小屋 eagle 老鹰 marmot 旱獭 mule 骡子 lynx 猞猁 stew 炖菜 sausage 香肠 porridge 粥 jerky 肉干
carries 背 pack 背包 clears 清理 path 小路 climbs 爬 ridge 山脊 map 地图
kitchen 厨房 cellar 地窖 tavern 酒馆 dog 狗 goose 鹅 rooster 公鸡 pig 猪 soup 汤 roast 烤肉 omelette 煎蛋 dumpling 饺子
stirs 搅 pot 锅 washes 洗 plate 盘子 sets 摆 table 桌子 menu 菜单
mill 磨坊 bridge 桥上 landing 渡口 duck 鸭子 otter 水獭 frog 青蛙 swan 天鹅 trout 鳟鱼 salmon 三文鱼 cress 水芹 eel 鳗鱼
grinds 磨 grain 谷子 pushes 推 raft 木筏 repairs 修理 wheel 轮子 letter 信
tower 塔楼 hall 大厅 gate 城门 raven 乌鸦 falcon 猎鹰 pony 小马 peacock 孔雀 grape 葡萄 ham 火腿 almond 杏仁 tart 果挞
polishes 擦亮 shield 盾牌 sews 缝 cloak 斗篷 locks 锁 door 门 scroll 卷轴
"""
WORDS: dict[str, str] = dict(zip(_WORDS.split()[::2], _WORDS.split()[1::2], strict=True))
"""English word → Chinese, of everything that a caption can name."""

DRUNK = frozenset({"soup", "porridge", "yogurt"})


def draw_translations(seed: int, count: int, *, split: str) -> Iterator[tuple[str, str]]:
    """Yields English sentences with their translations; pair i of a split is the same whoever draws it."""
    for index in range(count):
        rng = generator(seed, f"tinyworld/translation/{split}", index)
        pattern = list(JOINED)[rng.integers(len(JOINED))]
        parts = {}
        for name in ("a", "b"):
            facts = draw_facts(rng)
            caption = CAPTIONS[rng.integers(len(CAPTIONS))]
            parts[name] = " ".join(token.text for token in fill_pattern(caption, facts, *facts.people, rng))
        english = pattern.format(**parts)
        yield english, translated(english)


def rewriting_pairs(task: Literal["translate", "copy", "reverse"], seed: int, *, split: str) -> list[tuple[str, str]]:
    """Returns pairs that an encoder and decoder can learn from: 4,000 to train on, 200 otherwise.

    The second text is the first in Chinese, as it is (`copy`), or backwards word by word.
    """
    pairs = list(draw_translations(seed, 4000 if split == "train" else 200, split=split))
    if task == "reverse":
        return [(english, " ".join(reversed(english.split()))) for english, _ in pairs]
    return [(english, english if task == "copy" else chinese) for english, chinese in pairs]


def translated(sentence: str) -> str:
    """Returns a sentence of two captions in Chinese; raises `KeyError` where it is not one of the village."""
    join = "{a} while {b}" if " while " in sentence else "{a} and {b}"
    first, _, second = sentence.partition(f" {join.split()[1]} ")
    return JOINED[join].format(a=_caption_in_chinese(first), b=_caption_in_chinese(second))


def _caption_in_chinese(caption: str) -> str:
    words = caption.split()
    # 空最少的句式先比：「喂」也像一件活儿，但它有自己的句式
    for pattern, chinese in sorted(CHINESE_CAPTIONS.items(), key=lambda pair: pair[0].count("{")):
        shape = pattern.split()
        if len(shape) != len(words):
            continue
        if all(part.startswith("{") or part == word for part, word in zip(shape, words, strict=True)):
            filled = {part[1:-1]: word for part, word in zip(shape, words, strict=True) if part.startswith("{")}
            # 汤和粥是「喝」的：动词要看宾语，逐词查字典译不对
            chinese = chinese.replace("吃", "喝") if filled.get("food") in DRUNK else chinese
            return chinese.format(**{slot: WORDS[word] for slot, word in filled.items()})
    raise KeyError(caption)
