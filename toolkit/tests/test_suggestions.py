"""Suggestions for misspelt names."""

from toolkit.suggestions import nearest_name, suggest_name


def test_the_nearest_name_ignores_case():
    assert nearest_name("FLUSHDISKTYP", ["flushDiskType", "other"]) == "flushDiskType"
    assert nearest_name("x", ["flushDiskType"]) is None


def test_suggestions_end_a_sentence():
    assert suggest_name("rat", ["rate", "mode"]) == '; did you mean "rate"?'
    assert suggest_name("zzz", ["rate", "mode"]) == "; known names: mode, rate"
    assert suggest_name("zzz", ["rate", "mode"], list_all=False) == ""
