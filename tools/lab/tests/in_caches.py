# SPDX-License-Identifier: GPL-2.0
"""A base of tests that have caches of their own."""

import os
import tempfile
import unittest
from pathlib import Path
from unittest import mock


class InCaches(unittest.TestCase):
    """The caches are in `top`, which is a new folder."""

    def setUp(self):
        self.top = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.enterContext(mock.patch.dict(os.environ, XDG_CACHE_HOME=str(self.top)))
