# SPDX-License-Identifier: GPL-2.0
"""Runs guests: their roots, their machines, and the plan of the boots."""
