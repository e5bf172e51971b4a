# SPDX-License-Identifier: GPL-2.0
"""Tests over pyverbs of regions with on-demand paging whose pages vvram has migrated to VRAM.

pyverbs_tests.py runs them, with the tests of rdma-core to be imported. The CPU has no access to the
memory of a region before the end of a test: that would move the pages back. The tests check the
number of pages that moved back, to see that the NIC accesses the pages in VRAM.
"""

import ctypes
import fcntl
import mmap
import random
import struct
from pathlib import Path

import pyverbs.enums as e
from pyverbs.mr import MR
from pyverbs.wr import SGE, SendWR
from tests import base, utils

NODE = "/dev/dri/renderD128"
PAGES = 16
SIZE = PAGES * mmap.PAGESIZE
WORD = struct.Struct("<Q")
# An address, a size, flags and a pad: struct drm_vvram_svm_range.
RANGE = struct.Struct("<QQII")
# DRM_IOCTL_VVRAM_SVM_MIGRATE, whose argument is written to the kernel.
MIGRATE = 1 << 30 | RANGE.size << 16 | ord("d") << 8 | 0x4a
# The file of the device in debugfs.
SVM = Path("/sys/kernel/debug/dri/128/svm")
ACCESS = (e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_READ | e.IBV_ACCESS_REMOTE_WRITE |
          e.IBV_ACCESS_REMOTE_ATOMIC)


class Gpu:
    """The device of the driver."""

    def __init__(self):
        self.node = open(NODE, "r+b", buffering=0)

    @staticmethod
    def counter(name):
        """A number of the file."""
        return int(dict(line.split() for line in SVM.read_text().splitlines())[name])

    def migrate(self, addr, size):
        """Move memory of this process to VRAM."""
        fcntl.ioctl(self.node, MIGRATE, RANGE.pack(addr, size, 0, 0))

    def close(self):
        """Close the device."""
        self.node.close()


class Resources(base.RCResources):
    """A queue pair, memory that the CPU accesses, and memory that migrates."""

    def create_qp_attr(self):
        attr = super().create_qp_attr()
        attr.qp_access_flags = ACCESS
        return attr

    def create_mr(self):
        self.memory = mmap.mmap(-1, SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.addr = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        self.host = MR(self.pd, SIZE, ACCESS)
        self.mr = MR(self.pd, SIZE, ACCESS | e.IBV_ACCESS_ON_DEMAND, address=self.addr)


class OnDemand(base.RDMATestCase):
    """Accesses of the NIC to memory in VRAM."""

    def setUp(self):
        super().setUp()
        self.gpu = Gpu()
        self.create_players(Resources)

    def tearDown(self):
        super().tearDown()
        self.gpu.close()

    def filled(self):
        """Fill the memory of the server and migrate it; return its bytes."""
        content = random.randbytes(SIZE)
        self.server.memory[:] = content
        before = self.gpu.counter("held")
        self.gpu.migrate(self.server.addr, SIZE)
        self.assertEqual(self.gpu.counter("held"), before + SIZE)
        return content

    def transfer(self, opcode, size, atomic=None):
        """Let the client transfer bytes between its host memory and the memory of the server."""
        entry = SGE(self.client.host.buf, size, self.client.host.lkey)
        request = SendWR(opcode=opcode, num_sge=1, sg=[entry])
        if atomic is None:
            request.set_wr_rdma(self.server.mr.rkey, self.server.mr.buf)
        else:
            request.set_wr_atomic(self.server.mr.rkey, self.server.mr.buf, atomic, 0)
        utils.post_send(self.client, request)
        utils.poll_cq(self.client.cq)

    def read(self):
        """The bytes that the NIC reads from the memory of the server."""
        self.client.host.write(b"\0" * SIZE, SIZE)
        self.transfer(e.IBV_WR_RDMA_READ, SIZE)
        return self.client.host.read(SIZE, 0)

    def test_operations_reach_pages_where_they_are(self):
        """Reads, writes and atomics arrive, and no page moves back for them."""
        content = self.filled()
        moved = self.gpu.counter("moved_back")
        self.assertEqual(self.read(), content)

        content = random.randbytes(SIZE)
        self.client.host.write(content, SIZE)
        self.transfer(e.IBV_WR_RDMA_WRITE, SIZE)
        self.assertEqual(self.read(), content)

        [old] = WORD.unpack_from(content)
        self.transfer(e.IBV_WR_ATOMIC_FETCH_AND_ADD, WORD.size, atomic=3)
        self.assertEqual(WORD.unpack(self.client.host.read(WORD.size, 0)), (old,))
        content = WORD.pack((old + 3) % 2 ** 64) + content[WORD.size:]
        self.assertEqual(self.read(), content)
        self.assertEqual(self.gpu.counter("moved_back"), moved)

        self.assertEqual(self.server.memory[:], content)
        self.assertEqual(self.gpu.counter("moved_back"), moved + PAGES)
        self.assertEqual(self.read(), content)

    def test_regions_follow_pages_that_migrate_again(self):
        """The NIC finds the same bytes in system memory and, after that, in VRAM."""
        content = self.filled()
        self.assertEqual(self.read(), content)
        self.assertEqual(self.server.memory[:], content)
        content = self.filled()
        moved = self.gpu.counter("moved_back")
        self.assertEqual(self.read(), content)
        self.assertEqual(self.gpu.counter("moved_back"), moved)
