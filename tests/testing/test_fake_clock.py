from loadcell.clock import Clock
from loadcell.testing.fake_clock import FakeClock


def test_moves_only_forward_and_only_when_told() -> None:
    fake = FakeClock(5)
    clock: Clock = fake
    assert clock.now_ns() == 5
    clock.sleep_until(3)
    assert clock.now_ns() == 5
    clock.sleep_until(9)
    assert clock.now_ns() == 9
    assert fake.sleeps == [3, 9]
    assert fake.advance(1.5) == 1_500_000_009
