"""The benchmarks: all of them with `python -m benchmarks`, one with `python -m benchmarks NAME`."""

import difflib
import sys
from collections.abc import Sequence

import tyro
from tyro.extras import SubcommandApp

from benchmarks import command
from qemrl.cli.console import UsageError

COMMANDS = {
    "estimator": command.bench_estimator,
    "tabular": command.bench_tabular,
    "variance": command.bench_variance,
    "representations": command.bench_representations,
    "scaling": command.bench_scaling,
    "value": command.bench_value,
    "actor-critic": command.bench_actor_critic,
    "learning": command.bench_learning,
    "adapters": command.bench_adapters,
    "page": command.bench_page,
    "chaos": command.chaos,
}

ABOUT = f"""Without a name, or with options alone, all are run; else the one that is named: {", ".join(COMMANDS)}.
`python -m benchmarks NAME --help` shows its options."""

PROG = "python -m benchmarks"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; usage errors exit with 2, an interrupt with 130."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if not arguments or arguments[0].startswith("-"):
            tyro.cli(command.bench_all, prog=PROG, description=f"{command.bench_all.__doc__}\n{ABOUT}", args=arguments)
            return
        if arguments[0] not in COMMANDS:
            near = difflib.get_close_matches(arguments[0], COMMANDS, n=1, cutoff=0.5)
            hint = f"did you mean `{PROG} {near[0]}`?" if near else f"choose from {', '.join(COMMANDS)}"
            raise UsageError(f"there is no benchmark `{arguments[0]}`; {hint}")
        app = SubcommandApp()
        for name, each in COMMANDS.items():
            app.command(each, name=name)
        app.cli(prog=PROG, args=arguments)
    except (UsageError, OSError) as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("benchmarks: interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
