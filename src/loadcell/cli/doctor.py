"""`loadcell doctor`: what this machine and the client on it can measure, as a table or as JSON."""

import os
import sys
from typing import Annotated, Any

import typer

from loadcell.cli.capability import Capability, measure
from loadcell.cli.diagnosis import Finding, diagnose_capability, diagnose_machine
from loadcell.cli.machine import MachineFacts, read_machine

_COLOURS = {"ok": typer.colors.GREEN, "warn": typer.colors.YELLOW, "fail": typer.colors.RED}


def doctor(
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of the table.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Check the machine only; send no load.")] = False,
) -> None:
    """Check what this machine can measure.

    Reads the limits and clocks that matter, then loads a replay server on this machine for about 15 s, through the same client as
    `bench`. Exits with 1 when measurements made here are not to be trusted.
    """
    facts = read_machine(os.environ)
    if not quick:
        print("loading a replay server on this machine, about 15 s …", file=sys.stderr)
    capability = None if quick else measure(file_limit=facts.fd_hard)
    findings = diagnose_machine(facts) + ([] if capability is None else diagnose_capability(capability))
    trustworthy = all(finding.state != "fail" for finding in findings)
    if json:
        typer.echo(as_json(facts, capability, findings, trustworthy=trustworthy))
    else:
        for line in table(findings):
            typer.echo(line)
        typer.echo(conclusion(findings))
    raise typer.Exit(0 if trustworthy else 1)


def table(findings: list[Finding]) -> list[str]:
    """A line per finding, and one below it where there is something to do."""
    width = max(len(finding.name) for finding in findings)
    lines = []
    for finding in findings:
        state = typer.style(f"{finding.state:<4}", fg=_COLOURS[finding.state])
        lines.append(f"{state}  {finding.name:<{width}}  {finding.found}")
        if finding.advice:
            lines.append(f"{'':<{width + 6}}  → {finding.advice}")
    return lines


def conclusion(findings: list[Finding]) -> str:
    failed = [finding.name for finding in findings if finding.state == "fail"]
    warned = [finding.name for finding in findings if finding.state == "warn"]
    if failed:
        return f"Measurements made here are not to be trusted: {', '.join(failed)}."
    if warned:
        return f"Usable, with limits: {', '.join(warned)}."
    return "This machine is fit to measure."


def as_json(facts: MachineFacts, capability: Capability | None, findings: list[Finding], *, trustworthy: bool) -> str:
    import msgspec

    whole: dict[str, Any] = {"trustworthy": trustworthy, "findings": findings, "machine": facts, "capability": capability}
    return msgspec.json.format(msgspec.json.encode(whole), indent=2).decode()
