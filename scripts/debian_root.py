"""Debian in a folder, by debootstrap, and commands in it. As root, on Linux.

`make container` executes the Dockerfile in such a root, `make pythons` takes a Python from one that the machine lacks.
Each command gets its own mount and process namespace, so nothing stays mounted, and no process behind, when it ends.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

MIRROR = "http://deb.debian.org/debian"
SLIM = ("doc", "groff", "info", "linda", "lintian", "locale", "man")
"""Folders of /usr/share that Debian's slim images leave out."""
PASSED = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "NO_PROXY")
"""What a command in the root gets from the environment of this one: how it reaches the package indexes."""
AUTHORITIES = "/run/authorities.crt"


def require() -> None:
    """End this program if it cannot do what it is for."""
    missing = [name for name in ("debootstrap", "unshare", "chroot") if shutil.which(name, path=_path()) is None]
    if os.geteuid() != 0 or sys.platform != "linux":
        sys.exit("this needs root on Linux: it makes file systems of Debian and runs commands in them")
    if missing:
        sys.exit(f"not installed: {', '.join(missing)}; apt-get install debootstrap util-linux coreutils")


def make(root: Path, suite: str, packages: tuple[str, ...] = ()) -> None:
    """The smallest Debian of a suite, without the folders that slim images leave out."""
    include = [f"--include={','.join(packages)}"] if packages else []
    command = ["debootstrap", "--variant=minbase", *include, suite, str(root), MIRROR]
    done = subprocess.run(command, env=os.environ | {"PATH": _path()}, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{shlex.join(command)} failed:\n{done.stdout[-3000:]}{done.stderr[-1000:]}")
    rules = "".join(f"path-exclude /usr/share/{name}/*\n" for name in SLIM)
    (root / "etc/dpkg/dpkg.cfg.d/slim").write_text(rules)
    for name in SLIM:
        for path in (root / "usr/share" / name).glob("*"):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    for path in [*(root / "var/cache/apt/archives").glob("*.deb"), *(root / "var/lib/apt/lists").glob("*_*")]:
        path.unlink()


def run(
    root: Path, command: list[str], env: Mapping[str, str], folder: str = "/", binds: Mapping[str, str] = {}
) -> int:
    """Run a command in the root with its network, its output on ours; its exit code. `binds`: places in the root."""
    env = {name: os.environ[name] for name in PASSED if name in os.environ} | {**env}
    mounts = {"/etc/resolv.conf": "/etc/resolv.conf"} | {**(binds or {})}
    if authorities := os.environ.get("PIP_CERT"):
        mounts[AUTHORITIES] = authorities
        env = env | {"PIP_CERT": AUTHORITIES}
    lines = [f"mount -t proc proc {quoted(root, '/proc')}", f"mount --rbind /dev {quoted(root, '/dev')}"]
    for place, source in mounts.items():
        target = root / place.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        if Path(source).is_dir():
            target.mkdir(exist_ok=True)
        elif not target.exists():
            target.touch()
        lines.append(f"mount --bind {shlex.quote(source)} {shlex.quote(str(target))}")
    inner = shlex.join(["env", "-i", *(f"{name}={value}" for name, value in env.items()), *command])
    lines.append(
        f"exec chroot {shlex.quote(str(root))} /bin/sh -c {shlex.quote(f'cd {shlex.quote(folder)} && exec {inner}')}"
    )
    namespaces = ["unshare", "--mount", "--pid", "--fork", "--kill-child"]
    script = " && ".join(lines)
    return subprocess.run([*namespaces, "sh", "-c", script], env={"PATH": _path()}, check=False).returncode


def quoted(root: Path, place: str) -> str:
    return shlex.quote(f"{root}{place}")


def size(root: Path) -> int:
    """Bytes on disk of what is below a folder."""
    done = subprocess.run(["du", "-sx", "-B1", str(root)], capture_output=True, text=True, check=True)
    return int(done.stdout.split()[0])


def _path() -> str:
    return f"{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin"
