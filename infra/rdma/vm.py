"""A machine with an RDMA card that needs none: Debian's kernel with Soft-RoCE (rdma_rxe) over its loopback, under QEMU.

`python -m infra.rdma 'COMMAND'` runs a command in it: Debian's Python 3.11, pyverbs, numpy, pytest and perftest are there, this
checkout stands at /gyre, read-only. Needs a Linux on x86_64; no root, no KVM, nothing installed. It is emulated, for a KVM that can be
opened may still hang; where it does not, GYRE_VM_ACCEL=kvm is faster.
"""

from __future__ import annotations

import os
import platform
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from gyre_engine.lifeline import tied
from infra.rdma.fetch import NotToBeHad, cache_folder, root

CHECKOUT = Path(__file__).parents[2]
_I = "drivers/infiniband"
MODULES = (
    "drivers/virtio/virtio_ring", "drivers/virtio/virtio", "drivers/virtio/virtio_pci_legacy_dev",
    "drivers/virtio/virtio_pci_modern_dev", "drivers/virtio/virtio_pci", "fs/netfs/netfs", "fs/fscache/fscache", "net/9p/9pnet",
    "net/9p/9pnet_virtio", "fs/9p/9p", "fs/overlayfs/overlay", "arch/x86/crypto/crc32-pclmul", "crypto/crc32_generic",
    f"{_I}/core/ib_core", f"{_I}/core/ib_uverbs", "net/ipv4/udp_tunnel", "net/ipv6/ip6_udp_tunnel", f"{_I}/sw/rxe/rdma_rxe",
)  # fmt: skip
"""In the order in which they are loaded: each after what it needs."""

INIT = """#!/bin/busybox sh
b=/bin/busybox; $b mount -t proc p /proc; $b mount -t sysfs s /sys; $b mount -t devtmpfs d /dev
for module in $($b cat /order); do $b insmod /modules/$module.ko || echo "insmod $module failed"; done
nine=trans=virtio,version=9p2000.L,msize=512000,cache=loose,ro
$b mount -t 9p -o $nine root /ro; $b mount -t tmpfs t /rw; $b mkdir /rw/upper /rw/work
$b mount -t overlay -o lowerdir=/ro,upperdir=/rw/upper,workdir=/rw/work o /new
$b mkdir -p /new/proc /new/sys /new/dev /new/gyre /new/tmp /new/root /dev/shm
for folder in proc sys dev; do $b mount --move /$folder /new/$folder; done
$b mount -t tmpfs t /new/dev/shm; $b mount -t 9p -o $nine gyre /new/gyre
$b cp /job /new/job; $b chroot /new /bin/busybox --install -s /bin 2>/dev/null
for library in blas lapack; do $b ln -s $library/lib$library.so.3 /new/usr/lib/x86_64-linux-gnu/; done
$b chroot /new /bin/sh /job; echo "GYRE-VM-RC=$?"; $b poweroff -f
"""

JOB = """export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root PYTHONDONTWRITEBYTECODE=1
ulimit -l unlimited
ip link set lo up && rdma link add rxe0 type rxe netdev lo || exit 90
cd /gyre
export OPENSSL_ia32cap=0:0
"""  # OpenSSL's plain code: its vector code is half as fast where vectors are emulated


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a command in the VM ended, and all that it printed. rc is None where the VM did not live to its end."""

    rc: int | None
    output: str


def run(command: str, *, memory_mb: int = 2048, limit_s: float = 600.0) -> Outcome:
    """Boot, run a shell command in the checkout's root, power off. Raises NotToBeHad where there can be no such VM."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise NotToBeHad(f"the VM's QEMU is built for Linux on x86_64, and this is {platform.system()} on {platform.machine()}")
    unpacked = root(cache_folder())
    with tempfile.TemporaryDirectory() as folder:
        initrd = _initrd(Path(folder), unpacked, JOB + command + "\n")
        try:
            ended = subprocess.run(
                tied(_qemu(unpacked, initrd, memory_mb)), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                timeout=limit_s, check=False, env={"QEMU_MODULE_DIR": str(unpacked / "usr/lib/x86_64-linux-gnu/qemu")},
            )  # fmt: skip
            text = ended.stdout.decode(errors="replace")
        except subprocess.TimeoutExpired as late:
            text = (late.stdout or b"").decode(errors="replace") + f"\nthe VM was ended after {limit_s:.0f} s"
    return _outcome(text.replace("\r", ""))


def _outcome(text: str) -> Outcome:
    output, marker, rest = text.partition("GYRE-VM-RC=")
    return Outcome(int(rest.split()[0]) if marker else None, output if marker else text)


def _qemu(unpacked: Path, initrd: Path, memory_mb: int) -> list[str]:
    """QEMU from the unpacked packages, run by their own loader with their own libraries."""
    libraries = ":".join(str(unpacked / part / "x86_64-linux-gnu") for part in ("lib", "usr/lib"))
    loader = unpacked / "lib/x86_64-linux-gnu/ld-linux-x86-64.so.2"
    shared = [(unpacked, "root"), (CHECKOUT, "gyre")]
    return [
        str(loader), "--library-path", libraries, str(unpacked / "usr/bin/qemu-system-x86_64"),
        "-L", str(unpacked / "usr/share/qemu"), "-L", str(unpacked / "usr/share/seabios"),
        "-accel", os.environ.get("GYRE_VM_ACCEL", "tcg,thread=multi"), "-cpu", "max,-arch-capabilities",
        "-smp", str(max(2, min(4, os.cpu_count() or 1))), "-m", str(memory_mb),
        "-nodefaults", "-no-reboot", "-display", "none", "-serial", "stdio",
        "-kernel", str(_kernel(unpacked)), "-initrd", str(initrd),
        "-append", "console=ttyS0 quiet panic=-1 mitigations=off",
        *(word for folder, tag in shared for word in (
            "-virtfs", f"local,path={folder},mount_tag={tag},security_model=none,readonly=on,multidevs=remap")),
    ]  # fmt: skip


def _kernel(unpacked: Path) -> Path:
    return next((unpacked / "boot").glob("vmlinuz-*"))


def _initrd(folder: Path, unpacked: Path, job: str) -> Path:
    """busybox, the modules, and what is to be done, as a cpio archive."""
    tree = folder / "initrd"
    for name in ("bin", "modules", "proc", "sys", "dev", "ro", "rw", "new"):
        (tree / name).mkdir(parents=True)
    kernel = unpacked / "lib/modules" / _kernel(unpacked).name.removeprefix("vmlinuz-") / "kernel"
    for module in MODULES:
        _copy(kernel / f"{module}.ko", tree / "modules")
    _copy(unpacked / "bin/busybox", tree / "bin")
    (tree / "order").write_text("\n".join(module.rpartition("/")[2] for module in MODULES))
    (tree / "job").write_text(job)
    (tree / "init").write_text(INIT)
    (tree / "init").chmod(0o755)
    names = "\n".join(str(path.relative_to(tree)) for path in sorted(tree.rglob("*")))
    packed = subprocess.run(
        [str(unpacked / "bin/busybox"), "cpio", "-o", "-H", "newc"],
        cwd=tree,
        input=names.encode(),
        capture_output=True,
        check=True,
    )
    archive = folder / "initrd.cpio"
    archive.write_bytes(packed.stdout)
    return archive


def _copy(file: Path, folder: Path) -> None:
    target = folder / file.name
    target.write_bytes(file.read_bytes())
    target.chmod(0o755)
