# SPDX-License-Identifier: GPL-2.0
"""The lab: builds the kernel, boots guests, runs the demo, the tests and the benchmark.

Called by the Makefile at the top of the repository; `make help` explains the
commands and their settings.
"""

import os
import sys

import bench
import cache
import check
import debianroot
import demo
import pipeline
import qemu
import rdma
import steps
import style
import tally
import topologies


def with_rdma(work, flavour=None):
    """A guest that is ready to boot, with what RDMA needs."""
    built = pipeline.everything(work, flavour)
    rdma.ensure(work, built)
    return built


def run_demo(work):
    """Show the main job on every topology."""
    demo.run(work, pipeline.everything(work))
    work.console.say(f"total time: {work.console.elapsed()}")
    return 0


def run_check(work):
    """Pass every test."""
    return tally.close(work.console, check.run(work, with_rdma(work)))


def run_rdma(work):
    """Pass the tests of RDMA alone, and show what moved how fast."""
    return tally.close(work.console, check.run_rdma(work, with_rdma(work)))


def run_bench(work):
    """Measure, and meet every target."""
    bench.run(work, with_rdma(work, bench.FLAVOUR))
    work.console.say(f"total time: {work.console.elapsed()}")
    return 0


def run_style(work):
    """Pass the style gates."""
    return tally.close(work.console, style.run(work))


def run_shell(work):
    """An interactive guest on the topology named by TOPOLOGY=."""
    name = os.environ.get("TOPOLOGY") or topologies.TOPOLOGIES[0].name
    topology = topologies.find(name)
    if topology is None:
        known = ", ".join(t.name for t in topologies.ALL)
        raise steps.LabError(f"there is no TOPOLOGY={name}", f"choose one of: {known}")
    built = with_rdma(work) if topology in topologies.RDMA else pipeline.everything(work)
    work.console.say(f"{topology.title}; exit powers the guest off, Ctrl-a x ends QEMU")
    return built.machine.interactive(qemu.Boot("shell", topology, "shell", 0))


def run_clean(work):
    """Remove the caches."""
    for path in sorted(cache.base().iterdir()):
        if path.name not in ("lock", "logs"):
            work.console.say(f"removing {path}")
            debianroot.remove(path)
    return 0


COMMANDS = {"demo": run_demo, "check": run_check, "rdma": run_rdma, "bench": run_bench,
            "style": run_style, "shell": run_shell, "clean": run_clean}


def main():
    """Run one command."""
    if len(sys.argv) != 2 or sys.argv[1] not in COMMANDS:
        print(f"usage: {sys.argv[0]} {'|'.join(COMMANDS)}", file=sys.stderr)
        return 2
    command = sys.argv[1]
    console = steps.Console()
    try:
        with cache.lock(lambda pid: console.say(
                f"another run of the lab (process {pid}) uses the caches: waiting for it")):
            console.restart()
            return COMMANDS[command](steps.Steps(console, cache.base() / "logs" / command))
    except steps.LabError as error:
        steps.report(console, error)
        console.say(f"total time: {console.elapsed()}")
        return 1
    except KeyboardInterrupt:
        console.say("interrupted")
        return 130


sys.exit(main())
