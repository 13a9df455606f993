"""`loadcell VERB …`: words -> an exit code. The one place that turns an error into a line for the user.

A verb's module is imported only when that verb is asked for, so that `--help` and errors are quick.
"""

import errno
import os
import sys
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import Any, Final, cast

from loadcell import __version__
from loadcell.errors import LoadcellError

VERBS: Final[dict[str, tuple[str, str]]] = {
    "bench": ("loadcell.cli.bench", "Load one or many endpoints, and report what they deliver."),
    "run": ("loadcell.cli.run", "Run an experiment: start services, load them scenario by scenario, stop them, report."),
    "tune": ("loadcell.cli.tune", "Find the parameters of a service that give the most within limits, and prove it."),
    "study": ("loadcell.cli.study", "Say what a study found, or export its best configuration."),
    "report": ("loadcell.cli.report", "Make the reports of a run again from its records."),
    "init": ("loadcell.cli.init", "Write a commented specification of an experiment."),
    "check": ("loadcell.cli.check", "Say what an experiment would run, and start nothing."),
    "fleet": ("loadcell.cli.fleet", "Start, look at, read and stop services by hand."),
    "import-optix": ("loadcell.cli.import_optix", "Write a configuration of msmodeling optix as a study of ours."),
    "doctor": ("loadcell.cli.doctor", "Check what this machine can measure."),
    "simulate": ("loadcell.cli.simulate", "Serve a simulated engine where no accelerator is."),
}

_TYPER_SAYS: Final = (
    ("Value error, ", ""),
    ("Input should be a valid integer, unable to parse string as an integer", "expected a whole number"),
    ("Input should be a valid number, unable to parse string as a number", "expected a number"),
)
_OF_THE_PATH: Final = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ELOOP, errno.ENAMETOOLONG, errno.ENOTDIR, errno.ENOSPC, errno.EDQUOT)
"""What is wrong with a path that was given, wherever it is first looked at, and no bug of ours."""
USAGE: Final = 2
INTERRUPTED: Final = 130
BROKEN_PIPE: Final = 141


def main(words: Sequence[str] | None = None) -> int:
    """Run one command line (default: this process's) and return its exit code. Only a real bug leaves a traceback."""
    words = sys.argv[1:] if words is None else words
    if sys.platform != "linux":
        return _say(f"loadcell runs on Linux; this is {sys.platform}", 1)
    try:
        return _run(words)
    except LoadcellError as error:
        return _say(str(error), error.exit_code)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output left, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that the flush at exit finds a reader
        return BROKEN_PIPE
    except OSError as error:
        if error.errno not in _OF_THE_PATH or not error.filename:
            raise
        return _say(f"{os.fsdecode(error.filename)}: {error.strerror}", 1)


def _run(words: Sequence[str]) -> int:
    verb = words[0] if words else "--help"
    if verb in ("--version", "-V"):
        print(f"loadcell {__version__}")
        return 0
    if verb in ("--help", "-h"):
        print(_overview())
        return 0
    if verb not in VERBS:
        near = get_close_matches(verb, VERBS, n=1)
        return _say(f"unknown command {verb}" + (f": did you mean {near[0]}?" if near else f": choose one of {', '.join(VERBS)}"), USAGE)
    return _run_verb(verb, words[1:])


def _run_verb(verb: str, words: Sequence[str]) -> int:
    from loadcell.cli.argv import normal

    module = import_module(VERBS[verb][0])
    function, table = getattr(module, verb.replace("-", "_")), getattr(module, "TABLE", None)
    words = normal(words, getattr(module, "LISTS", ()))
    if table is not None:
        from loadcell.cli.plain import values_of

        given = values_of(words, table)
        if given is not None:
            return int(function(**given))
        from loadcell.cli.options import with_options

        function = with_options(function, table)
    return _run_typer(verb, function, words)


def _run_typer(verb: str, function: Callable[..., Any], words: list[str]) -> int:
    import typer

    command = _command(verb, function)
    usage_error = cast(type[Exception], typer.BadParameter.__bases__[0])  # typer's UsageError, wherever its version keeps it
    try:
        result = command.main(words, prog_name=f"loadcell {verb}", standalone_mode=False)
    except typer.Abort:
        return INTERRUPTED
    except usage_error as error:
        return _say(_usage_text(error, command), USAGE)
    return result if isinstance(result, int) else 0


def _command(verb: str, function: Callable[..., Any]) -> Any:
    import typer

    app = typer.Typer(
        add_completion=False, rich_markup_mode="rich", context_settings={"help_option_names": ["--help", "-h"], "max_content_width": 140}
    )
    app.command(verb)(function)
    return typer.main.get_command(app)


def _usage_text(error: Any, command: Any) -> str:
    """One line for what typer could not read. An option that is none gets our own words: a substitute, or the nearest right one."""
    name = getattr(error, "option_name", None)
    if isinstance(name, str) and type(error).__name__ == "NoSuchOption":
        return _unknown_option(name, command)
    text = " ".join(str(error.format_message()).split())
    for theirs, ours in _TYPER_SAYS:
        text = text.replace(theirs, ours)
    return text


def _unknown_option(name: str, command: Any) -> str:
    from loadcell.flags.refused import substitute_for

    instead = substitute_for(name.lstrip("-").replace("-", "_")) if command.name == "bench" else None
    if instead:
        return f"{name} has no meaning here: {instead}"
    known = [option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)]
    near = get_close_matches(name, known, n=1)
    return f"unknown flag {name}" + (f": did you mean {near[0]}?" if near else f": see `loadcell {command.name} --help`")


def _overview() -> str:
    width = max(map(len, VERBS))
    verbs = "\n".join(f"  {verb:<{width}}  {words}" for verb, (_, words) in VERBS.items())
    return (
        f"loadcell {__version__}: load LLM inference services, and measure what they deliver without disturbing them\n\n"
        f"Usage: loadcell COMMAND [FLAGS]\n\n{verbs}\n\n"
        "`loadcell COMMAND --help` lists a command's flags with their defaults; `loadcell --version` prints the version."
    )


def _say(text: str, code: int) -> int:
    print(f"loadcell: error: {text}", file=sys.stderr)
    return code
