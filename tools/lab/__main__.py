# SPDX-License-Identifier: GPL-2.0
"""The lab: builds the kernel, boots guests, runs the demo, the tests and the benchmark.

Called by the Makefile at the top of the repository; `make help` explains the
commands and their settings.
"""

import os
import signal
import sys

from boot import arm64, pipeline, plan, topologies
from build import cache, debianroot, kernel, processes, rdmaclients, steps, tree
from commands import bench, check, deb, demo, docs, installed, mutants, onebyone, profiler, style
from judge import costs, record, report, tally


def with_rdma(work, flavour=None, variant=None):
    """A guest that is ready to boot, with what RDMA needs."""
    built = pipeline.everything(work, flavour, variant)
    rdmaclients.ensure(work, built)
    return built


def chosen_topology():
    """The topology named by TOPOLOGY=."""
    name = os.environ.get("TOPOLOGY") or topologies.TOPOLOGIES[0].name
    topology = topologies.find(name)
    if topology is None:
        known = ", ".join(t.name for t in topologies.ALL)
        raise steps.LabError(f"there is no TOPOLOGY={name}", f"choose one of: {known}")
    return topology


def for_topology(work, topology):
    """A guest that is ready to boot on a machine."""
    return with_rdma(work) if topology in topologies.RDMA else pipeline.everything(work)


def run_demo(work):
    """Show a transfer on each topology, and that it is refused where there is no route."""
    demo.run(work, pipeline.everything(work))
    work.console.say(f"total time: {work.console.elapsed()}")
    return 0


def run_check(work):
    """Pass every test."""
    kernel.need_checks()
    return tally.close(work.console, check.run(work, with_rdma(work)))


def run_soak(work):
    """Pass the tests that take too long to be run with each change.

    On the kernel of `make check`, then on those with sanitizers, that with PREEMPT_RT, those of
    arm64, that of `make deb`, then the build of each commit of `make tree`; FLAVOUR= has one of
    them.
    """
    asked = os.environ.get("FLAVOUR")
    bad = 0
    for flavour in [asked] if asked else [kernel.DEFAULT, *kernel.SANITIZERS, kernel.REALTIME,
                                          *kernel.ARM64, installed.FLAVOUR, onebyone.FLAVOUR]:
        if flavour == onebyone.FLAVOUR:
            # It is not a kernel that boots.
            os.environ.pop("FLAVOUR", None)
            part = work.record.part(onebyone.FLAVOUR, None)
            part.verdicts += onebyone.run(work)
            bad |= tally.close(work.console, part.verdicts)
            continue
        if flavour == installed.FLAVOUR:
            # Its tests are judged as those of `make check` are.
            os.environ.pop("FLAVOUR", None)
            bad |= tally.close(work.console, installed.run(work))
            continue
        # All that follows goes by it.
        os.environ["FLAVOUR"] = flavour
        kernel.need_checks()
        built = (arm64.everything if flavour in kernel.ARM64 else with_rdma)(work)
        bad |= tally.close(work.console, check.run_soak(work, built))
    return bad


def run_rdma(work):
    """Pass the tests of RDMA alone, and show the bandwidths that the clients measured."""
    return tally.close(work.console, check.run_rdma(work, with_rdma(work)))


def run_test(work):
    """Pass the tests named by TEST= on the machine named by TOPOLOGY=."""
    tests = os.environ.get("TEST")
    if not tests:
        raise steps.LabError("no TEST= is given",
                             "for example: make test TEST=vvram_move@storm,vvram_p2p SEED=1")
    topology = chosen_topology()
    return tally.close(work.console, check.run_test(work, for_topology(work, topology),
                                                    tests.split(","), topology))


def run_fuzz(work):
    """Make random calls, on several machines or on the one named by TOPOLOGY=."""
    kernel.need_checks()
    chosen_topology()
    return tally.close(work.console, check.run_fuzz(work, pipeline.everything(work)))


def run_bench(work):
    """Measure, and meet every target."""
    bench.run(work, with_rdma(work, costs.FLAVOUR))
    work.console.say(f"total time: {work.console.elapsed()}")
    return 0


def run_profile(work):
    """Show which functions take the instructions of some figures of the benchmark."""
    topology = chosen_topology()
    profiler.run(work, pipeline.everything(work, costs.FLAVOUR), topology)
    work.console.say(f"total time: {work.console.elapsed()}")
    return 0


def run_mutants(work):
    """Break the code on purpose, each time in one place, and see that the tests find it."""
    kernel.need_checks()
    chosen = mutants.chosen()
    built = (with_rdma if mutants.need_rdma(chosen) else pipeline.everything)(
        work, variant=mutants.tree)
    return mutants.run(work, built, chosen)


def run_style(work):
    """Pass the style gates."""
    return tally.close(work.console, style.run(work))


def run_docs(work):
    """Render the documentation."""
    verdict, page = docs.run(work)
    work.console.say(f"documentation: {page}")
    return tally.close(work.console, [verdict])


def run_tree(work):
    """Make a git tree of Linux with the repository as commits."""
    out = tree.destination(os.environ.get("OUT"))
    who = tree.author(pipeline.REPO)
    box, src = pipeline.sources(work)
    tree.make(work, src, pipeline.REPO, box, out, who)
    work.console.say(f"total time: {work.console.elapsed()}")
    return 0


def run_deb(work):
    """Make Debian packages of the kernel and of p2p, for a real machine."""
    deb.tell(work.console, deb.make(work, deb.destination(os.environ.get("OUT"))))
    work.console.say(f"total time: {work.console.elapsed()}")
    return 0


def run_p2p(work):
    """Make a Debian package of p2p alone."""
    deb.tell(work.console, deb.make_tool(work, deb.destination(os.environ.get("OUT"))))
    work.console.say(f"total time: {work.console.elapsed()}")
    return 0


def run_shell(work):
    """An interactive guest on the topology named by TOPOLOGY=."""
    topology = chosen_topology()
    built = for_topology(work, topology)
    work.console.say(f"{topology.title}; exit powers the guest off, Ctrl-a x ends QEMU")
    return built.machine.interactive(plan.shell(topology))


def run_clean(work):
    """Remove the caches."""
    for path in sorted(cache.base().iterdir()):
        if path.name not in ("lock", "logs"):
            work.console.say(f"removing {path}")
            debianroot.remove(path)
    return 0


COMMANDS = {"demo": run_demo, "check": run_check, "soak": run_soak, "test": run_test,
            "rdma": run_rdma, "fuzz": run_fuzz, "bench": run_bench, "profile": run_profile,
            "mutants": run_mutants,
            "style": run_style, "docs": run_docs, "tree": run_tree, "deb": run_deb, "p2p": run_p2p,
            "shell": run_shell, "clean": run_clean}
# The commands that leave an HTML report.
REPORTED = ("demo", "check", "soak", "test", "rdma", "fuzz", "bench")
# The exceptions that end a command early.
ENDS = (steps.LabError, OSError, processes.Interrupted)


def main():
    """Run one command."""
    if len(sys.argv) != 2 or sys.argv[1] not in COMMANDS:
        print(f"usage: {sys.argv[0]} {'|'.join(COMMANDS)}", file=sys.stderr)
        return 2
    command = sys.argv[1]
    console = steps.Console()
    try:
        processes.end_on_signals()
        with cache.lock(lambda who: console.say(f"{who} uses the caches: waiting")):
            console.restart()
            return recorded(console, command)
    except ENDS as error:
        return ended_by(console, error)


def recorded(console, command):
    """Run a command, and leave a report of it, however it ends."""
    work = steps.Steps(console, cache.base() / "logs" / command)
    work.record = record.Record(command, steps=work.begun)
    error = None
    try:
        status = COMMANDS[command](work)
    except ENDS as ended:
        error, status = ended, ended_by(console, ended)
    work.record.end(status, error)
    report.leave(work, REPORTED)
    return status


def ended_by(console, error):
    """Say why a command came to an early end; return the exit status."""
    if isinstance(error, BrokenPipeError):
        # The reader of the lab's output is gone.
        return 128 + signal.SIGPIPE
    if isinstance(error, processes.Interrupted):
        console.say(str(error))
        return error.status
    if isinstance(error, OSError):
        if error.errno not in steps.FULL:
            raise error
        error = steps.DiskFull(error)
    steps.report(console, error)
    console.say(f"total time: {console.elapsed()}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
