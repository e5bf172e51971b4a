# SPDX-License-Identifier: GPL-2.0
"""Debian packages: those that the lab takes, and those that it makes."""
