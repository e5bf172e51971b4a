# SPDX-License-Identifier: GPL-2.0
"""Reads a guest's kernel log: it is part of the verdict of every boot."""

import re

BAD = re.compile(r"""
    WARNING: | BUG: | \bOops\b | Kernel\ panic | Call\ Trace | cut\ here
  | general\ protection\ fault | segfault\ at | traps: | rust_kernel:\ panicked
  | possible\ (recursive|circular|irq)\ \w* | inconsistent\ lock\ state | suspicious\ RCU
  | INFO:\ task\ .*\ blocked | INFO:\ rcu | rcu_\w+\ (self-)?detected\ stall | soft\ lockup
  | sleeping\ function\ called | scheduling\ while\ atomic | bad:\ scheduling
  | DMA-API: | KASAN: | UBSAN | KFENCE | refcount_t | unreferenced\ object | kmemleak:
  | list_(add|del)\ corruption | Unable\ to\ handle
  | DMAR:.*fault | AMD-Vi:.*(IO_PAGE_FAULT|Event\ logged) | virtio_iommu.*fault
  | detached\ from\ a\ dma-buf | unpins\ a\ dma-buf\ of
""", re.X)

# What the checkers say of themselves while all is well, and nothing else.
HARMLESS = re.compile(r"""
    DMA-API:\ preallocated\ \d+\ debug\ entries
  | DMA-API:\ debugging\ (enabled|disabled)\ by\ kernel\ config
  | kmemleak:\ Kernel\ memory\ leak\ detector\ initialized
  | kmemleak:\ Automatic\ memory\ scanning\ thread\ started
""", re.X)


def complaints(log):
    """The lines of a log in which the kernel complains, in order."""
    return [line for line in log.splitlines() if BAD.search(line) and not HARMLESS.search(line)]
