# SPDX-License-Identifier: GPL-2.0
"""Decides about results: verdicts of what boots leave, and the report of a run."""
