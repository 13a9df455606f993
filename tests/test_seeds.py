from loadcell.seeds import derive, stream


def test_purposes_are_independent_and_equal_ones_repeat():
    assert derive(0, "arrivals") == derive(0, "arrivals")
    seeds = [derive(seed, *purpose) for seed in range(3) for purpose in (("a",), ("b",), ("a", "b"), ("ab",), ("a", 1), ("a", "1"), ())]
    assert len(set(seeds)) == len(seeds)
    assert stream(0, "a").random() == stream(0, "a").random() != stream(0, "b").random()


def test_they_are_the_same_in_every_version_and_process():
    assert derive(0, "arrivals") == 0x1DC74AF97197F7E
