"""The words of the village: ten corners, twenty-four people, good days and bad ones.

Every corner has places, jobs, animals, foods, work and reading of its own, so that a few words tell where a story
plays. Every day is good or bad, and words of one feeling keep each other's company, as they do in real text. All of it
is our own.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Corner:
    """One part of the village and all that is found only there; `work` has the pairs (verb, object) of its days."""

    name: str
    places: tuple[str, ...]
    jobs: tuple[str, ...]
    animals: tuple[str, ...]
    foods: tuple[str, ...]
    work: tuple[tuple[str, str], ...]
    reading: str


_CORNERS = """
farm | barn field stable | farmer shepherd | cow sheep horse goat | cheese butter corn potato
stacks hay, mends fence, ploughs soil | almanac

harbour | pier lighthouse beach | sailor fisher | crab gull seal turtle | herring oyster shrimp seaweed
casts net, paints boat, ties rope | chart

forest | cabin clearing cave | hunter woodcutter | fox owl bear squirrel | mushroom chestnut blackberry root
chops wood, follows trail, lights fire | legend

street | bakery shop square | baker grocer | mouse cat sparrow pigeon | bread cake bun pie
kneads dough, sweeps floor, fills basket | recipe

school | classroom library yard | teacher pupil | hamster parrot rabbit goldfish | sandwich biscuit apple yogurt
writes lesson, cleans board, draws picture | poem

garden | orchard greenhouse lawn | gardener beekeeper | bee hedgehog snail butterfly | pear plum carrot honey
waters rose, plants seed, trims hedge | catalogue

mountain | peak valley hut | climber guide | eagle marmot mule lynx | stew sausage porridge jerky
carries pack, clears path, climbs ridge | map

inn | kitchen cellar tavern | cook waiter | dog goose rooster pig | soup roast omelette dumpling
stirs pot, washes plate, sets table | menu

river | mill bridge landing | miller rower | duck otter frog swan | trout salmon cress eel
grinds grain, pushes raft, repairs wheel | letter

castle | tower hall gate | guard tailor | raven falcon pony peacock | grape ham almond tart
polishes shield, sews cloak, locks door | scroll
"""
"""Name | places | jobs | animals | foods, and below them work | reading."""


def _corner(rows: str) -> Corner:
    name, *lists, work, reading = rows.replace("\n", " | ").split(" | ")
    places, jobs, animals, foods = (tuple(one.split()) for one in lists)
    verbs = tuple((verb, thing) for verb, thing in map(str.split, work.split(", ")))
    return Corner(name, places, jobs, animals, foods, verbs, reading)


CORNERS = tuple(map(_corner, _CORNERS.strip().split("\n\n")))

WOMEN = ("Anna", "Clara", "Emma", "Greta", "Ida", "Julia", "Lena", "Maria", "Nora", "Rosa", "Sofia", "Tilda")
MEN = ("Adam", "Boris", "David", "Felix", "Hugo", "Ivan", "Karl", "Leo", "Max", "Oscar", "Paul", "Tom")


@dataclass(frozen=True)
class Mood:
    """The words of a good day, or of a bad one.

    `name` is `good` or `bad`, by which reviews are labelled; they are made of `judgements`, adjectives of food, places
    and days. `intensifiers` are the adverbs that people of this mood say before them.
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
