# SPDX-License-Identifier: GPL-2.0
"""The commands of `make`, and parts of them."""
