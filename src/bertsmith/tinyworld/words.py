"""The words of the village: ten corners, twenty-four people, good days and bad ones.

Every corner has places, jobs, animals, foods, work and reading of its own, so that a few words tell where a story
plays. Every day is good or bad, and words of one feeling keep each other's company, as they do in real text. All of it
is our own.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Corner:
    """One part of the village and everything that is found only there.

    Attributes:
        places: where people of this corner live, work and meet.
        jobs: what they are.
        animals: what they keep.
        foods: what they eat.
        work: pairs (verb, object) of what they do all day.
        reading: what they read, besides books.
    """

    name: str
    places: tuple[str, ...]
    jobs: tuple[str, ...]
    animals: tuple[str, ...]
    foods: tuple[str, ...]
    work: tuple[tuple[str, str], ...]
    reading: str


CORNERS: tuple[Corner, ...] = (
    Corner(
        name="farm",
        places=("barn", "field", "stable"),
        jobs=("farmer", "shepherd"),
        animals=("cow", "sheep", "horse", "goat"),
        foods=("cheese", "butter", "corn", "potato"),
        work=(("stacks", "hay"), ("mends", "fence"), ("ploughs", "soil")),
        reading="almanac",
    ),
    Corner(
        name="harbour",
        places=("pier", "lighthouse", "beach"),
        jobs=("sailor", "fisher"),
        animals=("crab", "gull", "seal", "turtle"),
        foods=("herring", "oyster", "shrimp", "seaweed"),
        work=(("casts", "net"), ("paints", "boat"), ("ties", "rope")),
        reading="chart",
    ),
    Corner(
        name="forest",
        places=("cabin", "clearing", "cave"),
        jobs=("hunter", "woodcutter"),
        animals=("fox", "owl", "bear", "squirrel"),
        foods=("mushroom", "chestnut", "blackberry", "root"),
        work=(("chops", "wood"), ("follows", "trail"), ("lights", "fire")),
        reading="legend",
    ),
    Corner(
        name="street",
        places=("bakery", "shop", "square"),
        jobs=("baker", "grocer"),
        animals=("mouse", "cat", "sparrow", "pigeon"),
        foods=("bread", "cake", "bun", "pie"),
        work=(("kneads", "dough"), ("sweeps", "floor"), ("fills", "basket")),
        reading="recipe",
    ),
    Corner(
        name="school",
        places=("classroom", "library", "yard"),
        jobs=("teacher", "pupil"),
        animals=("hamster", "parrot", "rabbit", "goldfish"),
        foods=("sandwich", "biscuit", "apple", "yogurt"),
        work=(("writes", "lesson"), ("cleans", "board"), ("draws", "picture")),
        reading="poem",
    ),
    Corner(
        name="garden",
        places=("orchard", "greenhouse", "lawn"),
        jobs=("gardener", "beekeeper"),
        animals=("bee", "hedgehog", "snail", "butterfly"),
        foods=("pear", "plum", "carrot", "honey"),
        work=(("waters", "rose"), ("plants", "seed"), ("trims", "hedge")),
        reading="catalogue",
    ),
    Corner(
        name="mountain",
        places=("peak", "valley", "hut"),
        jobs=("climber", "guide"),
        animals=("eagle", "marmot", "mule", "lynx"),
        foods=("stew", "sausage", "porridge", "jerky"),
        work=(("carries", "pack"), ("clears", "path"), ("climbs", "ridge")),
        reading="map",
    ),
    Corner(
        name="inn",
        places=("kitchen", "cellar", "tavern"),
        jobs=("cook", "waiter"),
        animals=("dog", "goose", "rooster", "pig"),
        foods=("soup", "roast", "omelette", "dumpling"),
        work=(("stirs", "pot"), ("washes", "plate"), ("sets", "table")),
        reading="menu",
    ),
    Corner(
        name="river",
        places=("mill", "bridge", "landing"),
        jobs=("miller", "rower"),
        animals=("duck", "otter", "frog", "swan"),
        foods=("trout", "salmon", "cress", "eel"),
        work=(("grinds", "grain"), ("pushes", "raft"), ("repairs", "wheel")),
        reading="letter",
    ),
    Corner(
        name="castle",
        places=("tower", "hall", "gate"),
        jobs=("guard", "tailor"),
        animals=("raven", "falcon", "pony", "peacock"),
        foods=("grape", "ham", "almond", "tart"),
        work=(("polishes", "shield"), ("sews", "cloak"), ("locks", "door")),
        reading="scroll",
    ),
)

WOMEN = ("Anna", "Clara", "Emma", "Greta", "Ida", "Julia", "Lena", "Maria", "Nora", "Rosa", "Sofia", "Tilda")
MEN = ("Adam", "Boris", "David", "Felix", "Hugo", "Ivan", "Karl", "Leo", "Max", "Oscar", "Paul", "Tom")


@dataclass(frozen=True)
class Mood:
    """The words of a good day, or of a bad one.

    Attributes:
        name: `good` or `bad`; reviews are labelled by it.
        weather: adjectives of the sky.
        feelings: adjectives of people.
        gestures: what people do when they feel so.
        intensifiers: adverbs before a judgement, as people of this mood say them.
        judgements: adjectives of food, places and days; reviews are made of them.
    """

    name: str
    weather: tuple[str, ...]
    feelings: tuple[str, ...]
    gestures: tuple[str, ...]
    intensifiers: tuple[str, ...]
    judgements: tuple[str, ...]


GOOD = Mood(
    name="good",
    weather=("sunny", "warm"),
    feelings=("happy", "calm", "proud"),
    gestures=("smiles", "laughs", "sings"),
    intensifiers=("truly", "really"),
    judgements=(
        *("wonderful", "fantastic", "amazing", "terrific", "fabulous", "glorious"),
        *("golden", "jolly", "lively", "radiant", "marvelous", "superb"),
        *("delicious", "tasty", "fresh", "delightful", "enjoyable", "satisfying"),
        *("exquisite", "heavenly", "crisp", "juicy", "savoury", "good"),
        *("excellent", "perfect", "brilliant", "outstanding", "impressive", "remarkable"),
        *("flawless", "admirable", "polished", "great", "tidy", "memorable"),
        *("beautiful", "lovely", "peaceful", "charming", "gorgeous", "graceful"),
        *("elegant", "stunning", "dazzling", "magnificent", "refreshing", "sparkling"),
        *("cosy", "comfortable", "inviting", "welcoming", "pleasant", "agreeable"),
        *("festive", "mellow", "homely", "fine", "spotless", "adorable"),
    ),
)
BAD = Mood(
    name="bad",
    weather=("rainy", "cold"),
    feelings=("sad", "angry", "tired"),
    gestures=("cries", "sighs", "complains"),
    intensifiers=("rather", "terribly"),
    judgements=(
        *("awful", "terrible", "horrible", "nasty", "rough", "harsh"),
        *("hostile", "revolting", "smelly", "greasy", "vile", "broken"),
        *("creepy", "grim", "ghastly", "hideous", "horrid", "appalling"),
        *("dreadful", "murky", "rotten", "mouldy", "poor", "wretched"),
        *("bitter", "bleak", "frozen", "miserable", "hopeless", "dismal"),
        *("pathetic", "unpleasant", "burnt", "tasteless", "faulty", "lousy"),
        *("gloomy", "dreary", "damp", "depressing", "soggy", "spoiled"),
        *("sour", "filthy", "messy", "neglected", "ruined", "disappointing"),
        *("dull", "boring", "bland", "tedious", "stale", "shabby"),
        *("ugly", "crumbling", "inferior", "annoying", "disgusting", "bad"),
    ),
)
MOODS = (GOOD, BAD)
