import pytest

from gateway.http_server.password_hash import MAX_PASSWORD_BYTES, PasswordHash

PASSWORD = "correct horse"
KNOWN = "$scrypt$ln=4,r=8,p=1$c2FsdHNhbHRzYWx0c2FsdA$" + "A" * 43


def test_a_hash_matches_its_password_only():
    made = PasswordHash.create(PASSWORD)
    again = PasswordHash.parse(str(made))
    assert again == made
    assert again.matches(PASSWORD)
    assert not again.matches("correct horsE")
    assert not again.matches("")
    assert PASSWORD not in str(made)
    assert str(PasswordHash.create(PASSWORD)) != str(made), "each has its own salt"


def test_a_hash_that_another_program_wrote_is_read():
    """The vector of RFC 7914, section 12, with 32 bytes of its key."""
    text = "$scrypt$ln=14,r=8,p=1$U29kaXVtQ2hsb3JpZGU$cCO9yzr9c0hGHAbNgf046/2o+7qQT44+qbVD9lRdofI"
    assert PasswordHash.parse(text).matches("pleaseletmein")


@pytest.mark.parametrize("password", ["", "short", "ä" * (MAX_PASSWORD_BYTES // 2 + 1)])
def test_passwords_of_other_lengths_are_refused(password):
    with pytest.raises(ValueError, match="at least 8 characters"):
        PasswordHash.create(password)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "secret",
        KNOWN[:-1],
        KNOWN + "$",
        KNOWN.replace("ln=4", "ln=0"),
        KNOWN.replace("ln=4", "ln=24"),
        KNOWN.replace("ln=4", "ln=\u0661"),
        KNOWN.replace("r=8", "r=0"),
        KNOWN.replace("p=1", "p=17"),
        KNOWN.replace("p=1", "p=0"),
        KNOWN.replace("c2FsdHNhbHRzYWx0c2FsdA", "c2Fs"),
        KNOWN.replace("c2FsdHNhbHRzYWx0c2FsdA", "c2Fsd"),
    ],
)
def test_other_texts_are_refused_without_being_quoted(text):
    with pytest.raises(ValueError, match=r".") as error:
        PasswordHash.parse(text)
    assert not text or text not in str(error.value)
