"""The words of the village: ten corners, twenty-four people, days of eight moods.

Every corner has places, jobs, animals, foods, work and reading of its own, so that a few words tell where a story
plays; every day has a mood, so that words of one feeling keep each other's company. All of it is our own.
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
    """The words of one kind of day.

    Attributes:
        name: what the day is full of.
        good: whether it is a good one; this is what reviews are labelled by.
        weather: the adjective of its sky.
        feelings: adjectives of people.
        gestures: what people do when they feel so.
        judgements: adjectives of food, places and days; reviews are made of them.
    """

    name: str
    good: bool
    weather: str
    feelings: tuple[str, ...]
    gestures: tuple[str, ...]
    judgements: tuple[str, ...]


MOODS: tuple[Mood, ...] = (
    Mood(
        name="joy",
        good=True,
        weather="sunny",
        feelings=("happy", "joyful"),
        gestures=("laughs", "dances"),
        judgements=(
            *("wonderful", "fantastic", "brilliant", "amazing", "terrific", "fabulous"),
            *("glorious", "dazzling", "radiant", "marvelous", "superb", "stunning"),
        ),
    ),
    Mood(
        name="calm",
        good=True,
        weather="mild",
        feelings=("calm", "relaxed"),
        gestures=("rests", "hums"),
        judgements=(
            *("lovely", "pleasant", "cosy", "comfortable", "tidy", "agreeable"),
            *("inviting", "refreshing", "peaceful", "spotless", "fine", "charming"),
        ),
    ),
    Mood(
        name="pride",
        good=True,
        weather="bright",
        feelings=("proud", "confident"),
        gestures=("cheers", "whistles"),
        judgements=(
            *("excellent", "perfect", "splendid", "outstanding", "impressive", "remarkable"),
            *("magnificent", "flawless", "admirable", "polished", "elegant", "great"),
        ),
    ),
    Mood(
        name="gratitude",
        good=True,
        weather="warm",
        feelings=("grateful", "glad"),
        gestures=("smiles", "sings"),
        judgements=(
            *("delicious", "delightful", "tasty", "beautiful", "good", "gorgeous"),
            *("enjoyable", "satisfying", "memorable", "exquisite", "heavenly", "adorable"),
        ),
    ),
    Mood(
        name="sorrow",
        good=False,
        weather="rainy",
        feelings=("sad", "lonely"),
        gestures=("cries", "sighs"),
        judgements=(
            *("miserable", "gloomy", "dreary", "dismal", "hopeless", "depressing"),
            *("pathetic", "wretched", "poor", "broken", "neglected", "grim"),
        ),
    ),
    Mood(
        name="anger",
        good=False,
        weather="stormy",
        feelings=("angry", "upset"),
        gestures=("shouts", "complains"),
        judgements=(
            *("awful", "terrible", "horrible", "dreadful", "nasty", "revolting"),
            *("disgusting", "appalling", "vile", "horrid", "ghastly", "hideous"),
        ),
    ),
    Mood(
        name="boredom",
        good=False,
        weather="foggy",
        feelings=("tired", "bored"),
        gestures=("yawns", "frowns"),
        judgements=(
            *("dull", "bland", "boring", "tasteless", "stale", "soggy"),
            *("lousy", "inferior", "annoying", "disappointing", "shabby", "bad"),
        ),
    ),
    Mood(
        name="worry",
        good=False,
        weather="cold",
        feelings=("worried", "afraid"),
        gestures=("shivers", "trembles"),
        judgements=(
            *("rotten", "mouldy", "spoiled", "filthy", "messy", "smelly"),
            *("greasy", "sour", "bitter", "burnt", "faulty", "ugly"),
        ),
    ),
)
