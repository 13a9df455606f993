"""Who runs on which CPU, by the specification and by the CPUs that this process may use."""

import pytest

from loadcell.errors import UserError
from loadcell.fleet.cpus import cpus_of, told
from loadcell.fleet.spec import FleetSpec, HostSpec

AWAY = HostSpec(name="a", ssh="a")


@pytest.mark.parametrize(
    ("cpus", "usable", "services", "words"),
    [
        ("any", [0, 1], None, None),
        ("apart", [0, 1], (0,), 'cpus = "apart": services of this machine on CPU 0, the client on CPU 1'),
        ("apart", [0, 1, 2, 5, 7], (0, 1, 2, 5), 'cpus = "apart": services of this machine on CPUs 0-2, 5, the client on CPU 7'),
        ("apart", [3], None, 'cpus = "apart": this process may use one CPU, which the client and the services of this machine share'),
        ((1, 2), [0, 1, 2], (1, 2), "cpus: services of this machine on CPUs 1-2"),
    ],
)
def test_of_this_machine(cpus: object, usable: list[int], services: tuple[int, ...] | None, words: str | None) -> None:
    spec = FleetSpec(engine="simulated", cpus=cpus)  # type: ignore[arg-type]
    assert (cpus_of(spec, usable), told(spec, usable)) == (services, words)


def test_services_elsewhere_are_bound_to_none() -> None:
    apart = FleetSpec(engine="simulated", cpus="apart", host=(AWAY,))
    assert told(apart, [0, 1]) == 'cpus = "apart": the client on CPU 1; services in containers and on other hosts are bound to none'
    assert told(FleetSpec(engine="simulated", cpus=(0,), host=(AWAY,)), [0, 1]) is None


@pytest.mark.parametrize("cpus", [(), (4,)])
def test_cpus_that_are_not_there_are_refused(cpus: tuple[int, ...]) -> None:
    with pytest.raises(UserError, match=r"this process may use the CPUs \[0, 1\]: choose of these"):
        cpus_of(FleetSpec(engine="simulated", cpus=cpus), [0, 1])
