# SPDX-License-Identifier: GPL-2.0
"""The requirements of the lab on its host, checked before any work starts."""

import ctypes
import functools
import mmap
import os
import platform
import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from build import cache, sandbox
from build.steps import DiskFull, LabError

# The space that a run needs even if all caches are complete: objects, programs, results.
RUN_GB = 2
# Retries of connections that fail. After an answer such as "503 Service Unavailable" apt gives up:
# see persistently().
RETRIES = 'Acquire::Retries "3";'
# A wrong name is reported within seconds.
APT_HELPER = ["/usr/lib/apt/apt-helper", "-o", "Acquire::Retries=0",
              "-o", "Acquire::http::Timeout=10", "-o", "Acquire::https::Timeout=10"]
# Seconds to wait before something that downloads is done once more, each time that it fails.
PAUSES = (5, 20)
PROBES = 2
# rdtsc; shl rdx, 32; or rax, rdx; ret
RDTSC = bytes.fromhex("0f31 48c1e220 4809d0 c3")
TSC_SECONDS = 0.3
CA_BUNDLE = "/etc/ssl/certs/ca-certificates.crt"
CERTIFICATES = "CaInfo|CrlFile|SslCert|SslKey"
HOST_PACKAGES = ["mmdebstrap", "debian-archive-keyring"]


def preflight(ksrc):
    """Fail at once, with a clear message, if something is missing that a later step needs."""
    if platform.machine() != "x86_64":
        raise LabError(f"this machine is {platform.machine()}, the lab needs amd64",
                       "use an amd64 machine: toolchain, kernel and guest are amd64")
    _namespaces()
    if ksrc:
        check_ksrc(Path(ksrc))


def supplies(gigabytes, suites):
    """Fail at once if the caches lack space for what is missing, or if no mirror has the suites."""
    _disk(RUN_GB + gigabytes)
    if suites:
        mirror(*suites)


def _namespaces():
    probe = subprocess.run([*sandbox.unshare(), "true"], check=False,
                           stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if probe.returncode == 0:
        return
    if os.geteuid() == 0:
        raise LabError(f"root may not make a mount namespace here: {probe.stderr.strip()}",
                       "in a container, give it CAP_SYS_ADMIN (docker run --privileged)")
    raise LabError(f"not root, and no user namespaces: {probe.stderr.strip()}",
                   "run as root, or install uidmap, give your user a range in /etc/subuid "
                   "and /etc/subgid, and allow user namespaces (sysctl user.max_user_namespaces)")


def _disk(needed):
    folder = cache.base()
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free / 1e9
    if free < needed:
        raise LabError(f"{free:.1f} GB free for the caches in {cache.base()}, "
                       f"the lab needs {needed} GB",
                       "free some space, or set XDG_CACHE_HOME to a folder on a larger disk")


def check_ksrc(ksrc):
    """A tree given with KSRC= must be an unbuilt Linux 7.3."""
    makefile = ksrc / "Makefile"
    head = makefile.read_text(errors="replace")[:400] if makefile.is_file() else ""
    version = [re.search(rf"^{name} *= *(\d+)", head, re.M) for name in ("VERSION", "PATCHLEVEL")]
    if not all(version):
        raise LabError(f"KSRC={ksrc} is not a Linux source tree",
                       "give the top folder of a Linux 7.3 tree, or leave KSRC out")
    found = ".".join(m.group(1) for m in version)
    if found != "7.3":
        raise LabError(f"KSRC={ksrc} is Linux {found}, not 7.3",
                       "give a 7.3 tree, or leave KSRC out to use Debian's")
    if (ksrc / ".config").exists() or (ksrc / "include/config").exists():
        raise LabError(f"KSRC={ksrc} has been built in",
                       f"run make mrproper in it, or give a clean copy: git -C {ksrc} worktree add")


def install_packages(steps):
    """Install the packages that the host itself needs: only those that make Debian roots."""
    if shutil.which("mmdebstrap"):
        return
    if os.geteuid() != 0:
        raise LabError("mmdebstrap is not installed",
                       f"as root: apt-get install {' '.join(HOST_PACKAGES)} uidmap")
    with steps.step("host packages") as step:
        hint = "see that apt-get update and apt-get install work on this machine"
        apt_get = ["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-o", "Acquire::Retries=3"]
        persistently(lambda: step.run([*apt_get, "update"], hint))
        persistently(lambda: step.run([*apt_get, "install", "-y", "--no-install-recommends",
                                       *HOST_PACKAGES], hint))


def persistently(action):
    """Run a function that downloads, and repeat it if it fails, because a mirror may fail once."""
    for pause in PAUSES:
        try:
            return action()
        except DiskFull:
            raise
        except LabError:
            time.sleep(pause)
    return action()


@functools.cache
def mirror(*suites):
    """The Debian mirror: MIRROR=, else the first of the machine's own that has these suites."""
    given = os.environ.get("MIRROR")
    tried = []
    for uri in [given] if given else _apt_mirrors():
        uri = uri.rstrip("/")
        absent = next((suite for suite in suites if not _has_suite(uri, suite)), None)
        if not absent:
            return uri
        tried.append(f"{uri} does not give {absent}")
    raise LabError(f"no Debian mirror with {', '.join(suites)} can be reached: "
                   + ("; ".join(tried) or "apt has none"),
                   "check the network, or name a mirror: make demo MIRROR=http://.../debian")


def _apt_mirrors():
    """The mirrors that apt would use; this works before the first apt-get update too."""
    listed = subprocess.run(["apt-get", "--print-uris", "update"], check=False,
                            stdout=subprocess.PIPE, text=True).stdout
    return list(dict.fromkeys(re.findall(r"'(\S+?)/dists/\S+/InRelease'", listed)))


def _has_suite(uri, suite):
    """Ask with apt's own downloader, which knows the machine's proxies and certificates."""
    with tempfile.TemporaryDirectory() as folder:
        return any(subprocess.run([*APT_HELPER, "download-file", f"{uri}/dists/{suite}/InRelease",
                                   f"{folder}/probe"], check=False, stdout=subprocess.DEVNULL,
                                  stderr=subprocess.DEVNULL).returncode == 0
                   for _ in range(PROBES))


def apt_options(uri):
    """The machine's settings for fetching from a mirror, for the apt inside the roots."""
    return transport(subprocess.run(["apt-config", "dump", "Acquire"], check=False,
                                    stdout=subprocess.PIPE, text=True).stdout, uri)


def transport(dump, uri):
    """The proxy, validity and certificate settings of a dump of apt's configuration."""
    wanted = re.compile(r'Acquire::((http|https)::(Proxy|No-Cache|Timeout)|Check-)\S* "[^"]+";'
                        rf'|Acquire::https::(\S+::)?({CERTIFICATES}|Verify-\w+) "[^"]+";')
    options = [line for line in dump.splitlines() if wanted.match(line)]
    # A fresh root has no certificates, and its apt does not know where the host has them.
    if uri.startswith("https:") and 'Acquire::https::CaInfo "' not in dump:
        options.append(f'Acquire::https::CaInfo "{CA_BUNDLE}";')
    return options


def certificates(options):
    """The machine's files that such settings name."""
    named = re.findall(rf'::(?:{CERTIFICATES}) "(/[^"]+)";', "\n".join(options))
    return [file for file in dict.fromkeys(named) if Path(file).is_file()]


def tsc_khz():
    """The frequency of the host's time stamp counter, or None if it cannot be measured."""
    try:
        with mmap.mmap(-1, mmap.PAGESIZE,
                       prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC) as page:
            page.write(RDTSC)
            place = ctypes.c_char.from_buffer(page)
            read = ctypes.CFUNCTYPE(ctypes.c_uint64)(ctypes.addressof(place))
            begin = _at_once(read)
            time.sleep(TSC_SECONDS)
            end = _at_once(read)
            del place
    except OSError:
        # The machine may forbid executable memory.
        return None
    return round((end[1] - begin[1]) / (end[0] - begin[0]) * 1e6)


def _at_once(read):
    """Nanoseconds and the counter at the same time: the reading of several that took the least."""
    tries = []
    for _ in range(100):
        before = time.monotonic_ns()
        ticks = read()
        after = time.monotonic_ns()
        tries.append((after - before, (before + after) / 2, ticks))
    return min(tries)[1:]
