# SPDX-License-Identifier: GPL-2.0
"""A report of a run to look at: one file of HTML beside the logs, which needs no network.

content.py has the content, as the blocks of blocks.py; page.py, drawing.py and the files in looks/
have the layout.
"""

from build import cache
from judge.report import content, page

NAME = "report.html"


def leave(work, commands):
    """Write the report of a run that has ended, and say where it is.

    It is written for some commands only, if a step has begun. It does not change the exit status.
    """
    if work.record.command not in commands or not work.record.steps:
        return
    path = work.logs / NAME
    try:
        cache.write(path, page.render(content.page(work.record), path.parent).encode())
    except OSError as error:
        work.console.say(f"no report: {error}")
        return
    work.console.say(f"report: {path}")
