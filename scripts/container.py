"""Executes the Dockerfile without Docker: `make container`, as root on Debian or its relatives.

Each stage begins as a Debian that debootstrap makes, as Debian's own images do, and each step is carried out in a
chroot. The result then runs as the Dockerfile says, under the restrictions of compose.yaml: its user, a read-only
root, no capabilities, no new privileges, a volume, and a network of its own that has only a loopback device. What must
hold is asserted: it is healthy, sends, receives, keeps messages over a restart, runs a worker and is not root.
"""

from __future__ import annotations

import argparse
import json
import os
import posixpath
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from scripts import debian_root

ROOT = Path(__file__).parents[1]
PATIENCE = 60
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
LIMIT_MB = 300
"""How large the image may be."""


@dataclass
class Image:
    """What the steps of one stage have made."""

    root: Path
    env: dict[str, str] = field(default_factory=lambda: {"PATH": PATH})
    folder: str = "/"
    user: str = "root"
    volumes: list[str] = field(default_factory=list)
    health: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)
    entrypoint: list[str] = field(default_factory=list)
    stop_signal: str = "SIGTERM"

    def identity(self) -> tuple[int, int]:
        """The user's number and its group's."""
        users = (self.root / "etc/passwd").read_text().splitlines()
        line = next(line.split(":") for line in users if line.startswith(f"{self.user}:"))
        return int(line[2]), int(line[3])


def steps(text: str) -> list[tuple[str, str]]:
    """The instructions of a Dockerfile: keyword and the rest, on one line."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\s*\\\n\s*", " ", "\n".join(lines))
    return [
        (word.upper(), rest.strip()) for word, _, rest in (line.partition(" ") for line in joined.splitlines() if line)
    ]


def ignored(path: str, patterns: list[str]) -> bool:
    """Whether .dockerignore leaves a file of the context out; the last pattern that matches decides."""
    parents = ["/".join(path.split("/")[: n + 1]) for n in range(path.count("/") + 1)]
    out = False
    for pattern in patterns:
        wanted = pattern.lstrip("!")
        if any(fnmatch(parent, wanted.replace("**/", "*")) for parent in parents):
            out = not pattern.startswith("!")
    return out


class Builder:
    def __init__(self, work: Path) -> None:
        self._work = work
        self._bases: dict[str, Path] = {}
        self._stages: dict[str, Image] = {}
        self.image = Image(work)
        self._ignore = (ROOT / ".dockerignore").read_text().split()

    def build(self, text: str) -> Image:
        for keyword, rest in steps(text):
            print(f"{keyword} {rest[:150]}", flush=True)
            getattr(self, f"_{keyword.lower()}")(rest)
        return self.image

    def _from(self, rest: str) -> None:
        image, _, name = rest.partition(" AS ")
        found = re.fullmatch(r"debian:(\w+)-slim", image)
        if found is None:
            sys.exit(f"FROM {image}: only debian:SUITE-slim can be made by debootstrap")
        if image not in self._bases:
            base = self._bases[image] = self._work / f"base-{found[1]}"
            debian_root.make(base, found[1])
        root = self._work / f"stage-{len(self._stages)}"
        subprocess.run(["cp", "-a", "--reflink=auto", str(self._bases[image]), str(root)], check=True)
        self.image = self._stages[name or str(len(self._stages))] = Image(root)

    def _run(self, rest: str) -> None:
        if debian_root.run(self.image.root, ["/bin/sh", "-c", rest], self.image.env, self.image.folder):
            sys.exit(f"RUN {rest}: failed")

    def _workdir(self, rest: str) -> None:
        self.image.folder = rest
        (self.image.root / rest.lstrip("/")).mkdir(parents=True, exist_ok=True)

    def _copy(self, rest: str) -> None:
        *sources, target = [word for word in rest.split() if not word.startswith("--")]
        stage = re.match(r"--from=(\w+) ", rest)
        folder = self.image.root / posixpath.join(self.image.folder, target).lstrip("/")
        for name in sources:
            origin = self._stages[stage[1]].root / name.lstrip("/") if stage else ROOT / name
            if origin.is_dir():
                leave = None if stage else self._leave
                shutil.copytree(origin, folder, symlinks=True, dirs_exist_ok=True, ignore=leave)
            elif ignored(name, self._ignore):
                sys.exit(f"COPY {name}: .dockerignore leaves it out")
            else:
                folder.mkdir(parents=True, exist_ok=True)
                shutil.copy2(origin, folder)

    def _leave(self, folder: str, names: list[str]) -> set[str]:
        place = Path(folder).relative_to(ROOT)
        return {name for name in names if ignored((place / name).as_posix(), self._ignore)}

    def _env(self, rest: str) -> None:
        self.image.env |= dict(word.split("=", 1) for word in shlex.split(rest))

    def _user(self, rest: str) -> None:
        self.image.user = rest

    def _volume(self, rest: str) -> None:
        self.image.volumes.append(rest)

    def _healthcheck(self, rest: str) -> None:
        self.image.health = json.loads(rest.partition("CMD ")[2])

    def _entrypoint(self, rest: str) -> None:
        self.image.entrypoint = json.loads(rest)

    def _cmd(self, rest: str) -> None:
        self.image.command = json.loads(rest)

    def _stopsignal(self, rest: str) -> None:
        self.image.stop_signal = rest

    def _expose(self, rest: str) -> None:
        """Only says which ports there are."""


class Container:
    """A running image: its first process, and the namespaces that others join."""

    def __init__(self, image: Image, process: subprocess.Popen[str]) -> None:
        self._image = image
        self.process = process

    @cached_property
    def pid(self) -> int:
        """Its first process, as the machine numbers it."""
        return int(_until("its first process", lambda: _child(self.process.pid)))

    def run(self, *command: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """What `docker exec` does."""
        full = self._joined(env or {}, command)
        return subprocess.run(full, capture_output=True, text=True, timeout=PATIENCE, check=False)

    def start(self, *command: str, env: dict[str, str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self._joined(env, command))

    def _joined(self, env: dict[str, str], command: tuple[str, ...]) -> list[str]:
        join = ["nsenter", "--target", str(self.pid), "--mount", "--net", "--root"]
        return [*join, *_as(self._image, env), *command]

    def healthy(self) -> bool:
        return self.run(*self._image.health).returncode == 0

    def stop(self) -> int:
        subprocess.run(["kill", f"-{self._image.stop_signal}", str(self.pid)], check=True)
        return self.process.wait(PATIENCE)


@contextmanager
def running(image: Image, volume: Path, *command: str, mounts: dict[str, str] | None = None) -> Iterator[Container]:
    """Run a command as the first process of the image, under the restrictions of compose.yaml."""
    root = image.root
    lines = [
        "ip link set lo up",
        f"mount --bind {root} {root}",
        f"mount --bind {volume} {root}{image.volumes[0]}",
        *(f"mount --bind {source} {root}{place}" for place, source in (mounts or {}).items()),
        f"mount -t tmpfs tmpfs {root}/tmp",
        f"mount --rbind /dev {root}/dev",
        f"mount -t proc proc {root}/proc",
        f"mount -o remount,bind,ro {root}",
        shlex.join(["exec", "chroot", str(root), *_as(image, {}), *image.entrypoint, *command]),
    ]
    namespaces = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child"]
    process = subprocess.Popen([*namespaces, "sh", "-c", " && ".join(lines)], stdout=subprocess.PIPE, text=True)
    try:
        yield Container(image, process)
    finally:
        # Killing unshare would leave its child: what asks for that is forgotten when the child changes its user.
        if process.poll() is None:
            for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
                os.kill(int(child), signal.SIGKILL)
        process.communicate()


def _as(image: Image, env: dict[str, str]) -> list[str]:
    """A command's beginning: the user of the image, without any privilege, in its environment and folder."""
    uid, gid = image.identity()
    drop = ["--clear-groups", "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all"]
    values = [f"{name}={value}" for name, value in (image.env | env).items()]
    return ["setpriv", f"--reuid={uid}", f"--regid={gid}", *drop, "env", "-i", f"--chdir={image.folder}", *values]


def _child(pid: int) -> int | None:
    """The process that `unshare` has started, once it is what it shall be."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    started = bool(children) and b"python" in Path(f"/proc/{children[0]}/cmdline").read_bytes().split(b"\0")[0]
    return int(children[0]) if started else None


def _until(what: str, found: Any) -> Any:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if value := found():
            return value
        time.sleep(0.2)
    raise AssertionError(f"not after {PATIENCE} s: {what}")


def check(image: Image, work: Path) -> dict[str, Any]:
    """Use the image as compose.yaml and the pages tell people to."""
    uid, gid = image.identity()
    volume = work / "volume"
    volume.mkdir(mode=0o700)
    shutil.chown(volume, uid, gid)
    worker: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]["worker"]
    examples = worker["volumes"][0].split(":")[:2]
    (image.root / examples[1].lstrip("/")).mkdir()

    with running(image, volume, *image.command) as refused:
        assert refused.process.wait(PATIENCE) != 0, "it listens to other machines without a key"
    create = ["keys", "create", "admin", "--allow", "*", "--yes", "--json", "--store", image.env["MINIQ_STORE"]]
    with running(image, volume, *create) as keys:
        secret = json.loads(keys.process.communicate(timeout=PATIENCE)[0])["secret"]
    key = {"MINIQ_API_KEY": secret, "PYTHONPATH": examples[1]}

    mounts = {examples[1]: str(ROOT / examples[0])}
    with running(image, volume, *image.command, mounts=mounts) as broker:
        began = time.monotonic()
        _until("healthy", broker.healthy)
        ready = time.monotonic() - began
        status = dict(line.split(":\t", 1) for line in Path(f"/proc/{broker.pid}/status").read_text().splitlines())
        assert set(status["Uid"].split()) == {str(uid)} != {"0"}, status["Uid"]
        assert int(status["CapEff"], 16) == int(status["CapBnd"], 16) == 0
        assert broker.run("touch", "/etc/written").returncode != 0, "the root is not read-only"
        assert broker.run("miniq", "queues").returncode == 1, "it needs no key"
        for body in ("one", "two"):
            sent = broker.run("miniq", "send", "jobs", body, env=key)
            assert sent.returncode == 0, sent.stderr
        got = broker.run("miniq", "receive", "jobs", "--ack", "--json", env=key)
        assert json.loads(got.stdout)["body"] == "one", (got.stdout, got.stderr)
        # The example needs no mail server to say that this is no address; its handler of dead letters then takes it.
        created = broker.run("miniq", "queues", "create", "emails", "--history", "events", env=key)
        assert created.returncode == 0, created.stderr
        broker.run("miniq", "send", "emails", '{"to": "nobody"}', "--header", "task=welcome", env=key)
        working = broker.start("miniq", *worker["command"], env=key)
        history = ("miniq", "history", "--queue", "emails", "--json")
        _until("rejected", lambda: '"reason":"rejected"' in broker.run(*history, env=key).stdout.replace(": ", ":"))
        working.send_signal(signal.SIGTERM)
        assert working.wait(PATIENCE) == 0
        assert broker.stop() == 0, "it does not end as it should"

    with running(image, volume, *image.command) as again:
        _until("healthy again", again.healthy)
        got = again.run("miniq", "receive", "jobs", "--ack", "--json", env=key)
        assert json.loads(got.stdout)["body"] == "two", (got.stdout, got.stderr)
        assert again.stop() == 0
    return {"seconds_to_healthy": round(ready, 1), "uid": uid}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, help="a folder to work in, and to keep [default: a temporary one]")
    asked = parser.parse_args()
    debian_root.require()
    with tempfile.TemporaryDirectory(prefix="miniq-container-", dir=asked.work) as made:
        work = Path(made)
        builder = Builder(work)
        image = builder.build((ROOT / "Dockerfile").read_text())
        base = debian_root.size(work / "base-trixie") / 1e6
        whole = debian_root.size(image.root) / 1e6
        miniq = debian_root.size(image.root / "opt/miniq") / 1e6
        found = check(image, work)
        print(
            f"image {whole:.0f} MB: Debian {base:.0f}, Python {whole - base - miniq:.0f}, MiniQ {miniq:.0f}; "
            f"healthy after {found['seconds_to_healthy']} s as user {found['uid']}; sent, received, restarted, worked"
        )
        assert whole < LIMIT_MB, f"{whole:.0f} MB"
    return 0


if __name__ == "__main__":
    sys.exit(main())
