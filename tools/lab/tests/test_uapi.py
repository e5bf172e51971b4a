# SPDX-License-Identifier: GPL-2.0
"""Tests of the description of the ioctls in igt-tests: it has all that the headers have."""

import re
import unittest
from pathlib import Path

REPO = Path(__file__).parents[3]
# The numbers of ioctls, as an enum has them.
NUMBER = re.compile(r"^\t((?:DRM_IOCTL|EDU_PEER_IOC|BAR_EXPORT_IOC)_\w+) =", re.M)
DESCRIBED = re.compile(r'"((?:DRM_IOCTL|EDU_PEER_IOC|BAR_EXPORT_IOC)_\w+)[" ]')


def texts(folder, pattern):
    """The texts of files below a folder of the repository."""
    return "".join(path.read_text() for path in sorted((REPO / folder).rglob(pattern)))


class Described(unittest.TestCase):
    """The table from which bad input and random calls are made."""

    def test_every_ioctl_of_the_headers_is_described(self):
        numbers = set(NUMBER.findall(texts("include/uapi", "*.h")))
        described = set(DESCRIBED.findall(texts("igt-tests/src/describe", "*.rs")))
        self.assertGreater(len(numbers), 40)
        self.assertEqual(numbers - described, set())

    def test_every_errno_of_the_headers_is_listed(self):
        """An error that a header names, but no entry of the table, would be a finding."""
        named = set(re.findall(r"-(E[A-Z0-9]+)\b", texts("include/uapi", "*.h")))
        listed = set(re.findall(r"\bE[A-Z0-9]{2,}\b", texts("igt-tests/src/describe", "*.rs")))
        # Fences and mappings have these, not calls.
        self.assertEqual(named - listed, set())


if __name__ == "__main__":
    unittest.main()
