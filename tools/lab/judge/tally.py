# SPDX-License-Identifier: GPL-2.0
"""Counts verdicts and prints the closing lines."""


def close(console, verdicts):
    """Print skips, unsteady tests and failures, then the closing lines; return the exit status."""
    by_result = {"pass": [], "fail": [], "skip": [], "unsteady": []}
    for verdict in verdicts:
        by_result[verdict.result].append(verdict)
    for result, title in (("skip", "skipped"), ("unsteady", "UNSTEADY, passed the second time"),
                          ("fail", "FAILED")):
        for verdict in by_result[result]:
            console.say(f"{title}: {verdict.name}" + (f": {verdict.detail}" if verdict.detail else ""))
    console.say(f"total time: {console.elapsed()}")
    if by_result["unsteady"]:
        # The closing line has the same form in each run.
        console.say(f"{len(by_result['unsteady'])} unsteady")
    console.say(f"{len(by_result['pass'])} passed, {len(by_result['fail'])} failed, "
                f"{len(by_result['skip'])} skipped")
    return 1 if by_result["fail"] or not by_result["pass"] else 0
