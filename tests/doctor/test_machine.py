from loadcell.cli.machine import read_machine


def test_the_facts_of_this_machine_are_plausible() -> None:
    facts = read_machine({"HTTPS_PROXY": "http://proxy:3128", "HTTP_PROXY": ""})
    assert 0 < facts.fd_soft <= facts.fd_hard
    assert 1 <= facts.cpus <= facts.cpus_of_machine
    assert facts.clock_steps_back == 0
    assert 0 <= facts.sleep_late_p50_us <= facts.sleep_late_p99_us
    assert facts.port_low is not None
    assert facts.port_high is not None
    assert 0 < facts.port_low < facts.port_high < 65536
    assert facts.proxies == ("HTTPS_PROXY",)  # an empty variable is not set


def test_kernel_stamps_are_younger_than_their_read() -> None:
    age_us = read_machine({}).stamp_age_us
    assert age_us is None or 0 <= age_us < 1e6
