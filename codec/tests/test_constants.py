from codec import constants
from codec.constants import LANGUAGE_CODES, VERSION_NAMES, ResponseCode, version_name


def test_version_ordinals_are_the_official_ones():
    assert constants.CURRENT_VERSION == 493
    assert len(VERSION_NAMES) == 613
    assert version_name(0) == version_name(-5) == "V3_0_0_SNAPSHOT"
    assert version_name(401) == "V4_9_4"
    assert version_name(513) == "V5_5_0"
    assert version_name(612) == version_name(99_999) == "HIGHER_VERSION"


def test_languages_and_codes_have_their_numbers():
    assert (LANGUAGE_CODES["JAVA"], LANGUAGE_CODES["GO"], LANGUAGE_CODES["NODE_JS"]) == (0, 9, 13)
    assert constants.LANGUAGE_OTHER == 7
    assert ResponseCode(17) is ResponseCode.TOPIC_NOT_EXIST
    assert ResponseCode.PULL_OFFSET_MOVED == 21


def test_magic_words_are_the_official_signed_numbers():
    signed = [value - (1 << 32) for value in (constants.MAGIC_V1, constants.MAGIC_V2, constants.MAGIC_BLANK)]
    assert signed == [-626843481, -626843477, -875286124]
