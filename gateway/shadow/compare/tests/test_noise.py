import json

import pytest

from gateway.shadow.compare.noise import MAX_FIELDS, LearnedNoise


def learned(reads, differing, *, noise=None, code=30, path="offset"):
    noise = noise or LearnedNoise(reads=10, share=0.1, memory=100)
    for number in range(reads):
        noise.record_second_read(code, [path] if number < differing else [])
    return noise


def test_a_field_is_noise_when_enough_second_reads_differ_in_it():
    assert not learned(9, 9).is_noise(30, "offset")
    assert learned(10, 1).is_noise(30, "offset")
    assert not learned(30, 2).is_noise(30, "offset")
    assert not learned(10, 5).is_noise(30, "other")
    assert not learned(10, 5).is_noise(31, "offset")


def test_a_field_that_became_steady_is_no_longer_noise():
    noise = learned(50, 50)
    learned(2000, 0, noise=noise)
    assert not noise.is_noise(30, "offset")
    assert list(noise.noisy_fields()) == []
    assert learned(40, 40, noise=noise).is_noise(30, "offset")


def test_fields_are_bounded():
    noise = LearnedNoise(1, 0.0, 1000)
    for number in range(MAX_FIELDS + 50):
        noise.record_second_read(1, [f"field{number}"])
    assert len(list(noise.noisy_fields())) <= MAX_FIELDS


def test_learned_noise_survives_as_json():
    noise = LearnedNoise(reads=10, share=0.1, memory=100)
    noise.restore(json.loads(json.dumps(learned(20, 5).to_value())))
    assert list(noise.noisy_fields()) == [(30, "offset", 0.25)]
    learned(100, 0, noise=noise)


@pytest.mark.parametrize(
    "value", [{"x": {}}, {"1": 5}, {"1": {"reads": 1}}, {"1": {"reads": "?", "differed": {}}}]
)
def test_damaged_json_is_refused(value):
    with pytest.raises(ValueError, match=r".+"):
        LearnedNoise(1, 0.1, 10).restore(value)
