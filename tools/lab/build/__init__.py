# SPDX-License-Identifier: GPL-2.0
"""Makes what boots and what runs there: roots, sources, kernels, programs, packages."""
