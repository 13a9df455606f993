"""What a machine does for us, in one file of the standard library (Python 3.6 and newer): plain JSON values in, plain JSON values out.

`LocalHost` calls these functions here; over ssh and in containers the file's own text is sent through the connection, and `serve` answers
JSON lines. It knows nothing of engines, of readiness, or of who asks. Failure to reach it ends nothing: services are not its children.

A service is started by a waiter, a process outside the service's session, so that no signal to the group can reach it: it is there to
write down how the service ended, and (as its subreaper) to keep every descendant findable. A process belongs to a group when it
descends from the group's waiter, is in the session of the group's living leader, or has the group's marker in its environment. Pids are believed only
together with the start time and the boot id that were recorded with them.
"""

import base64
import errno
import fcntl
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any, BinaryIO, Callable, Dict, Iterable, List, NamedTuple, Optional, Set, Tuple

Json = Dict[str, Any]

VARIABLE = "LOADCELL_SERVICE"
IDLE_S = 900
"""A connection that asks nothing for so long is taken for dead: its agent leaves."""
START_S = 30.0
CHUNK = 1 << 20
LATELY_S = 0.05
ALL_S = 1.0
"""For so long a process that was there is taken to be the same one: its pid cannot have gone round to another's."""
KILL_ROUNDS = 10
PR_SET_CHILD_SUBREAPER = 36
SIOCGIFADDR = 0x8915
TCP_ESTABLISHED_TO_CLOSING = {"01", "02", "03", "04", "05", "07", "08", "09", "0B"}
TCP_LISTEN = "0A"
TCP_TIME_WAIT = "06"
NETLINK_SOCK_DIAG = 4
SOCK_DIAG_BY_FAMILY = 20
NLM_F_REQUEST_DUMP = 0x301
NLMSG_DONE = 3


class Refusal(Exception):
    """This machine cannot do what was asked; the text is for the user."""


class Process(NamedTuple):
    pid: int
    started: int
    parent: int
    session: int
    state: str


def source() -> bytes:
    """This file's own text: as it was sent, else as it is on the disk."""
    sent = globals().get("SENT")
    if isinstance(sent, bytes):
        return sent
    with open(__file__, "rb") as file:
        return file.read()


def bootstrap(verb: str, size: int) -> str:
    """The program for `python -c` that reads this file's text, `size` bytes, from stdin, and calls `verb` of it."""
    read = f"import sys;s=sys.stdin.buffer.read({size});g=dict(__name__='loadcell_agent',SENT=s)"
    return f"{read};exec(compile(s,'loadcell-agent','exec'),g);g['{verb}']()"


# Processes --------------------------------------------------------------------------------------------------------------------------


def boot_id() -> str:
    return _text("/proc/sys/kernel/random/boot_id").strip()


def identity(pid: int = 0) -> Json:
    """`pid` (0: this process) with what makes it unmistakable; `started` 0: there is no such process."""
    found = _process(pid or os.getpid())
    living = found is not None and _lives(found)
    return {"pid": pid or os.getpid(), "started": found.started if found and living else 0, "boot_id": boot_id(), "machine": machine()}


def machine() -> str:
    """Tells machines apart that share a home folder."""
    return "{} {}".format(socket.gethostname(), _text("/etc/machine-id").strip()).strip()


def _text(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return file.read().decode("utf-8", "replace")
    except OSError:  # a process may end while it is looked at
        return ""


def _process(pid: int) -> Optional[Process]:
    # A command's name may hold blanks and brackets: the fields are counted from behind its last bracket.
    fields = _text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    if len(fields) < 20:
        return None
    return Process(pid, int(fields[19]), int(fields[1]), int(fields[3]), fields[0])


def _processes(known: Optional[Dict[int, Process]] = None) -> Dict[int, Process]:
    """All; those that are `known` as they were, unless their parent is gone: then they have another."""
    known = known or {}
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    there = set(pids)
    found = (known[pid] if pid in known and known[pid].parent in there else _process(pid) for pid in pids)
    return {process.pid: process for process in found if process is not None}


_seen: List[Tuple[float, float, Dict[int, Process]]] = [(float("-inf"), float("-inf"), {})]


def _processes_lately() -> Dict[int, Process]:
    """Which there are, for finding a group's by birth: their states may be old. A machine has thousands of processes and a fleet many services, so
    one pass serves all who look within `LATELY_S`, and only one in `ALL_S` reads more than what is new.
    """
    when, whole, processes = _seen[0]
    now = time.monotonic()
    if now - when > LATELY_S:
        again = now - whole > ALL_S
        processes = _processes(None if again else processes)
        _seen[0] = (now, now if again else whole, processes)
    return processes


def _lives(process: Process) -> bool:
    """A zombie whose other threads still run lives (its first thread has left)."""
    if process.state not in "ZXx":
        return True
    try:
        return len(os.listdir(f"/proc/{process.pid}/task")) > 1
    except OSError:
        return False


_markers: Dict[Tuple[int, int], str] = {}


def _marker(process: Process) -> str:
    """The marker in the environment that a process was started with. Kept, because it changes only by exec, and children have it already before theirs."""
    key = (process.pid, process.started)
    if key not in _markers:
        if len(_markers) > 20000:
            _markers.clear()
        start = VARIABLE + "="
        words = _text(f"/proc/{process.pid}/environ").split("\0")
        _markers[key] = next((word[len(start) :] for word in words if word.startswith(start)), "")
    return _markers[key]


def _same(processes: Dict[int, Process], pid: int, started: int) -> Optional[Process]:
    found = processes.get(pid) if pid > 0 else None
    return found if found is not None and found.started == started else None


def _members(group: Json, processes: Dict[int, Process]) -> List[Process]:
    """The living processes of a group."""
    return [process for process in _own(group, processes) if _lives(process)]


def _own(group: Json, processes: Dict[int, Process]) -> List[Process]:
    """All of a group, zombies too. A session whose leader has ended may be another one by now: it is not believed alone."""
    if group["boot_id"] != boot_id() or group["pid"] <= 0:
        return []
    leader = _same(processes, group["pid"], group["started"])
    waiter = _same(processes, group.get("waiter", 0), group.get("waiter_started", 0))
    descendants = _descendants(waiter.pid, processes) if waiter else set()
    apart = {os.getpid(), group.get("waiter", 0)}
    return [
        process
        for process in processes.values()
        if process.pid not in apart
        and process.started >= group["started"]
        and (process.pid in descendants or (leader is not None and process.session == leader.pid) or _marker(process) == group["marker"])
    ]


def _descendants(root: int, processes: Dict[int, Process]) -> Set[int]:
    children: Dict[int, List[int]] = {}
    for process in processes.values():
        children.setdefault(process.parent, []).append(process.pid)
    found: Set[int] = set()
    left = [root]
    while left:
        new = [pid for pid in children.get(left.pop(), ()) if pid not in found]
        found.update(new)
        left.extend(new)
    return found


def _command(pid: int) -> str:
    line = _text(f"/proc/{pid}/cmdline").replace("\0", " ").strip()
    return line or _text(f"/proc/{pid}/comm").strip()


def commands(pids: List[int]) -> List[str]:
    """The command line of each; empty where there is no such process."""
    return [_command(pid) for pid in pids]


def _now(known: Iterable[Process]) -> Dict[int, Process]:
    """As they are at this moment; those that are gone are left out."""
    found = ((process, _process(process.pid)) for process in known)
    return {now.pid: now for process, now in found if now is not None and now.started == process.started}


def look(group: Json) -> Json:
    processes = _processes_lately()
    found = _now(_own(group, processes))
    leader = _same(found, group["pid"], group["started"])
    if leader is None or not _lives(leader):  # nobody is called dead by an old pass
        processes = _processes()
        found = _now(_own(group, processes))
    members = [process for process in found.values() if _lives(process)]
    code = _exit_code(group["exit_file"])
    alive = any(process.pid == group["pid"] for process in members)
    if not alive and code is None and group["boot_id"] == boot_id():
        # It has ended this moment, and its waiter is about to say how: until then it is no lost member, either.
        leader = _same(processes, group["pid"], group["started"])
        if leader is not None and _same(processes, group.get("waiter", 0), group.get("waiter_started", 0)) is not None:
            alive = True
            members.append(leader._replace(state="?"))
    own = {process.pid for process in members}
    now = dict(processes)
    now.update(found)
    return {
        "alive": alive,
        "exit_code": None if alive else code,
        "members": _shown(members),
        "defunct": _shown(p for p in now.values() if p.state == "Z" and p.parent in own and p.pid not in own),
        "log_size": log_size(group["log"]),
    }


def _shown(found: Iterable[Process]) -> List[Json]:
    return [
        {"pid": p.pid, "started": p.started, "parent": p.parent, "state": p.state, "command": _command(p.pid)}
        for p in sorted(found, key=lambda p: (p.started, p.pid))
    ]


def _exit_code(path: str) -> Optional[int]:
    try:
        return int(_text(path))
    except ValueError:
        return None


def send_signal(group: Json, number: int) -> int:
    """Signal every living member; how many. Those that fork while they are killed are followed."""
    sent: Set[Tuple[int, int]] = set()
    for _ in range(KILL_ROUNDS if number in (signal.SIGKILL, signal.SIGSTOP) else 1):
        new = [p for p in _members(group, _processes()) if (p.pid, p.started) not in sent]
        if not new:
            break
        sent.update((p.pid, p.started) for p in new if _signal_one(p, number))
    return len(sent)


def _signal_one(process: Process, number: int) -> bool:
    """A pidfd keeps meaning the process that it was opened for, so that nobody else can be hit between the look and the signal."""
    opened = getattr(os, "pidfd_open", None)
    handle = -1
    try:
        if opened is not None:
            try:
                handle = opened(process.pid)
            except OSError as error:
                if error.errno != errno.ENOSYS:
                    return False
        current = _process(process.pid)
        if current is None or current.started != process.started:
            return False
        if handle >= 0:
            signal.pidfd_send_signal(handle, number)
        else:
            os.kill(process.pid, number)
        return True
    except OSError:
        return False
    finally:
        if handle >= 0:
            os.close(handle)


def find(marker: str, log: str, exit_file: str) -> Optional[Json]:
    """The group of a marker whose start was never written down; null: nothing of it lives."""
    processes = _processes()
    _markers.clear()  # one that was seen before its exec has a marker since
    found = sorted((p for p in processes.values() if _marker(p) == marker and p.pid != os.getpid() and _lives(p)), key=lambda p: p.started)
    if not found:
        return None
    leader = found[0]
    above = processes.get(leader.parent)
    waiter = above if above is not None and above.parent >= 1 and "loadcell-waiter" in _command(above.pid) else None
    return _group(leader, waiter, marker, log, exit_file)


def _group(leader: Process, waiter: Optional[Process], marker: str, log: str, exit_file: str) -> Json:
    return {
        "pid": leader.pid,
        "started": leader.started,
        "boot_id": boot_id(),
        "marker": marker,
        "log": log,
        "exit_file": exit_file,
        "waiter": waiter.pid if waiter else 0,
        "waiter_started": waiter.started if waiter else 0,
    }


# Starting ---------------------------------------------------------------------------------------------------------------------------


def start(
    argv: List[str], env: Dict[str, str], cwd: Optional[str], log: str, marker: str, exit_file: str, cpus: Optional[List[int]] = None
) -> Json:
    """Start `argv` in a session of its own. A program that cannot be run has ended with 127 or 126 and a line in its log, as in a shell."""
    text = source()
    log, exit_file = path_of(log), path_of(exit_file)
    asked = {"argv": argv, "env": env, "cwd": path_of(cwd or "."), "log": log, "marker": marker, "exit_file": exit_file, "cpus": cpus}
    words = [sys.executable or "python3", "-I", "-B", "-S", "-c", bootstrap("wait", len(text)), "loadcell-waiter", marker]
    variables = {key: value for key, value in os.environ.items() if key != VARIABLE}
    waiter = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=variables)
    try:
        out, err = waiter.communicate(text + json.dumps(asked).encode() + b"\n", timeout=START_S)
    except subprocess.TimeoutExpired:
        waiter.kill()
        waiter.communicate()
        raise Refusal(f"the process that starts {argv[0]} did not answer in {START_S:.0f} s") from None
    try:
        answer = json.loads(out.decode())
    except ValueError:
        raise Refusal("cannot start {}: {}".format(argv[0], err.decode("utf-8", "replace").strip()[-400:])) from None
    if "refused" in answer:
        raise Refusal(answer["refused"])
    _markers.pop((answer["pid"], answer["started"]), None)
    return dict(answer)


def wait() -> None:
    """The waiter's whole life: leave the one who asked, start the service, say who it is, and write down how it ends."""
    asked = json.loads(sys.stdin.buffer.readline().decode())
    if os.fork():
        os._exit(0)
    os.setsid()
    try:
        os.makedirs(os.path.dirname(asked["log"]) or "/", exist_ok=True)
        log = os.open(asked["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        # Its few bytes are taken now, so that a disk that is full by then cannot swallow them.
        ending = os.open(asked["exit_file"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.pwrite(ending, b" " * 15 + b"\n", 0)
    except OSError as error:
        sys.stdout.write(json.dumps({"refused": str(error)}))
        sys.stdout.flush()
        os._exit(1)
    _adopt_orphans()
    begun, begins = os.pipe()
    leader = os.fork()
    if leader == 0:
        _become(asked, log)
    os.close(begins)
    os.read(begun, 1)  # its end is the exec's success, or the child's
    me, it = _process(os.getpid()), _process(leader)
    assert it is not None
    sys.stdout.write(json.dumps(_group(it, me, asked["marker"], asked["log"], asked["exit_file"])))
    sys.stdout.flush()
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    os.close(log)
    os.chdir("/")
    _reap(leader, ending)


def _adopt_orphans() -> None:
    """Descendants whose parent ends become ours instead of init's: so they are found even with a changed environment and session."""
    try:
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    except (ImportError, OSError, AttributeError):
        pass


def _become(asked: Json, log: int) -> None:
    """In the child: nothing of us may be inherited but the log, and no signal that we ignore."""
    try:
        os.setsid()
        for number in range(1, signal.NSIG):
            try:
                signal.signal(number, signal.SIG_DFL)
            except (OSError, ValueError):
                pass
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.chdir(asked["cwd"])
        if asked["cpus"]:
            os.sched_setaffinity(0, asked["cpus"])
        environment = dict(os.environ)
        environment.update(asked["env"])
        environment[VARIABLE] = asked["marker"]
        os.execvpe(asked["argv"][0], asked["argv"], environment)
    except BaseException as error:
        where = " in folder {}".format(asked["cwd"]) if getattr(error, "filename", None) == asked["cwd"] else ""
        why = getattr(error, "strerror", None) or error
        os.write(2, "loadcell: cannot start {}{}: {}\n".format(asked["argv"][0], where, why).encode("utf-8", "replace"))
        os._exit(127 if isinstance(error, (FileNotFoundError, NotADirectoryError)) else 126)


def _reap(leader: int, ending: int) -> None:
    """Until no descendant is left. The code is on the disk before the leader's pid can be used again."""
    while True:
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        except ChildProcessError:
            os._exit(0)
        assert ended is not None
        if ended.si_pid == leader:
            code = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
            try:
                os.pwrite(ending, f"{code:>15}\n".encode(), 0)
            except OSError:
                pass
        os.waitpid(ended.si_pid, 0)


def run(argv: List[str], timeout_s: float, env: Optional[Dict[str, str]] = None) -> Json:
    """A short command. Its output goes to files, since a daemon that it leaves behind would keep a pipe open for ever."""
    variables = dict(os.environ)
    variables.update(env or {})
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        try:
            ran = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=variables, start_new_session=True)
        except (FileNotFoundError, NotADirectoryError) as error:
            return {"code": 127, "out": "", "err": str(error)}
        except OSError as error:
            return {"code": 126, "out": "", "err": str(error)}
        late = ""
        try:
            code = ran.wait(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            late = f"no end within {timeout_s:g} s: killed"
            try:
                os.killpg(ran.pid, signal.SIGKILL)
            except OSError:
                pass
            code = ran.wait()
        return {"code": code, "out": _all_of(out), "err": _all_of(err) + late}


def _all_of(file: Any) -> str:
    file.seek(0)
    return str(file.read().decode("utf-8", "replace"))


# Logs -------------------------------------------------------------------------------------------------------------------------------
# `path` is what is written now; `path`.1 begins with a note and holds what came before; `path`.base says which bytes of the whole both hold.


def path_of(path: str) -> str:
    return os.path.abspath(os.path.expanduser(path))


def _base(path: str) -> Tuple[int, int, int]:
    """(offset of the first byte in `path`, offset of the first one in `path`.1, length of its note)."""
    try:
        first, kept, note = json.loads(_text(path + ".base"))
        return int(first), int(kept), int(note)
    except (ValueError, TypeError):
        return 0, 0, 0


def log_size(path: str) -> int:
    path = path_of(path)
    try:
        return _base(path)[0] + os.path.getsize(path)
    except OSError:
        return 0


def _locked(file: Any, how: int) -> None:
    try:
        fcntl.flock(file.fileno(), how)
    except OSError:  # a file system that has no locks
        pass


def read_log(path: str, offset: int, limit: int) -> Json:
    """{next offset, bytes}. What was rotated away between two reads is read from `path`.1 as long as it is there."""
    path = path_of(path)
    try:
        with open(path, "rb") as file:
            _locked(file, fcntl.LOCK_SH)
            first, kept, note = _base(path)
            end = first + os.fstat(file.fileno()).st_size
            begin = max(offset if offset >= 0 else end + offset, kept)
            if begin >= first:
                file.seek(begin - first)
                data = file.read(limit)
            else:
                data = _read_kept(path, note + begin - kept, min(limit, first - begin))
                if len(data) < min(limit, first - begin):  # somebody took it away
                    begin, data = first, file.read(limit)
                elif len(data) < limit:
                    data += file.read(limit - len(data))
            return {"next": begin + len(data), "data": base64.b64encode(data).decode()}
    except OSError:
        return {"next": max(offset, 0), "data": ""}


def _read_kept(path: str, at: int, limit: int) -> bytes:
    try:
        with open(path + ".1", "rb") as file:
            file.seek(at)
            return file.read(limit)
    except OSError:
        return b""


def cap_log(path: str, cap: int) -> bool:
    """Copy and truncate, as the writer keeps its file open (for appending). Whether it was done.

    What is written in the microseconds between the last copy and the cut is lost.
    """
    path = path_of(path)
    try:
        with open(path, "r+b", buffering=0) as file:
            kept_now = os.path.getsize(path + ".1") if os.path.exists(path + ".1") else 0
            if cap <= 0 or os.fstat(file.fileno()).st_size + kept_now <= cap:
                return False
            _locked(file, fcntl.LOCK_EX)
            _rotate(file, path, cap)
            return True
    except FileNotFoundError:
        return False


def _rotate(file: Any, path: str, cap: int) -> None:
    first = _base(path)[0]
    at = max(0, os.fstat(file.fileno()).st_size - cap // 2)
    kept = first + at
    note = f"loadcell: cut at {kept} bytes by the cap of {cap} bytes on this log; older bytes are gone\n".encode()
    with open(path + ".1.new", "wb") as copy:
        copy.write(note)
        at = _copy(file, copy, at)
        copy.flush()
        os.replace(path + ".1.new", path + ".1")
        # What was written meanwhile follows; then there is nothing between the last look and the cut.
        at = _copy(file, copy, at)
        copy.flush()
        with open(path + ".base.new", "w") as base:
            base.write(json.dumps([first + at, kept, len(note)]))
        late = _copy(file, copy, at)
        file.truncate(0)
        if late != at:
            with open(path + ".base.new", "w") as base:
                base.write(json.dumps([first + late, kept, len(note)]))
    os.replace(path + ".base.new", path + ".base")


def _copy(file: Any, copy: BinaryIO, at: int) -> int:
    file.seek(at)
    while True:
        data = file.read(CHUNK)
        if not data:
            return at
        copy.write(data)
        at += len(data)


# Ports ------------------------------------------------------------------------------------------------------------------------------


def bindable(address: str, port: int) -> bool:
    """Bound and listened on as servers do: SO_REUSEADDR, so that connections of servers in TIME_WAIT do not count. Those of clients do."""
    return _bind_error(address, port) is None


def _bind_error(address: str, port: int) -> Optional[int]:
    """Why not: an errno."""
    for family, kind, proto, _, where in socket.getaddrinfo(address, port, 0, socket.SOCK_STREAM, 0, socket.AI_PASSIVE):
        with socket.socket(family, kind, proto) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                tried.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            try:
                tried.bind(where)
                tried.listen(1)
            except OSError as error:
                return error.errno or errno.EADDRINUSE
    return None


def _sockets(port: int) -> List[Tuple[str, str]]:
    """(state, inode) of every TCP socket whose local port it is."""
    wanted = f":{port:04X}"
    found = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in _text(table).splitlines()[1:]:
            fields = line.split()
            if len(fields) > 9 and fields[1].endswith(wanted):
                found.append((fields[3], fields[9]))
    return found


def _listening(port: int) -> Optional[List[str]]:
    """The inodes of those who listen there, asked of the kernel itself; null where it does not tell. The tables below /proc take it a walk over the
    places of all connections that there could be, a hundred times as long.
    """
    try:
        return [inode for family in (socket.AF_INET, socket.AF_INET6) for inode in _listening_by(family, port)]
    except (OSError, struct.error):
        return None


def _listening_by(family: int, port: int) -> List[str]:
    # struct nlmsghdr, inet_diag_req_v2 and inet_diag_msg of the kernel's headers.
    asked = struct.pack("=BBBxI", family, socket.IPPROTO_TCP, 0, 1 << int(TCP_LISTEN, 16)) + struct.pack("!H46x", port)
    found: List[str] = []
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_SOCK_DIAG) as kernel:
        kernel.settimeout(1.0)
        kernel.send(struct.pack("=IHHII", 16 + len(asked), SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST_DUMP, 0, 0) + asked)
        while True:
            data = kernel.recv(1 << 16)
            while data:
                size, kind = struct.unpack_from("=IH", data)
                if kind == NLMSG_DONE:
                    return found
                if kind != SOCK_DIAG_BY_FAMILY:
                    raise OSError(errno.EOPNOTSUPP, "the kernel does not tell")
                if struct.unpack_from("!H", data, 20)[0] == port:
                    found.append(str(struct.unpack_from("=I", data, 84)[0]))
                data = data[(size + 3) & ~3 :]


def _owners(inodes: Iterable[str], first: Iterable[int] = ()) -> Dict[str, Set[int]]:
    """Whose descriptors they are, as far as we may look; where all are of processes in `first`, those alone."""
    wanted = {f"socket:[{inode}]": inode for inode in inodes if inode != "0"}
    if not wanted:
        return {}
    owners = _owners_among(map(str, first), wanted)
    return owners if len(owners) == len(wanted) else _owners_among(filter(str.isdigit, os.listdir("/proc")), wanted)


def _owners_among(names: Iterable[str], wanted: Dict[str, str]) -> Dict[str, Set[int]]:
    owners: Dict[str, Set[int]] = {}
    for name in names:
        folder = f"/proc/{name}/fd"
        try:
            handles = os.listdir(folder)
        except OSError:
            continue
        for handle in handles:
            try:
                inode = wanted.get(os.readlink(f"{folder}/{handle}"))
            except OSError:
                continue
            if inode is not None:
                owners.setdefault(inode, set()).add(int(name))
    return owners


def port_holder(port: int) -> Optional[Json]:
    if _listening(port) == [] and bindable("0.0.0.0", port):
        return None
    sockets = _sockets(port)
    for kind, states in (("listener", {TCP_LISTEN}), ("connection", TCP_ESTABLISHED_TO_CLOSING)):
        inodes = [inode for state, inode in sockets if state in states]
        if inodes:
            pids = sorted(pid for owners in _owners(inodes).values() for pid in owners)
            pid = pids[0] if pids else 0
            if set(inodes) == {"0"}:  # no process has it any more: the kernel ends it
                kind = "closing"
            return {"port": port, "pid": pid, "command": _command(pid) if pid else "", "kind": kind}
    wrong = _bind_error("0.0.0.0", port)
    if wrong is None:
        return None
    waits = any(state == TCP_TIME_WAIT for state, _ in sockets)
    kind = "forbidden" if wrong in (errno.EACCES, errno.EPERM) else "time_wait" if waits else "unknown"
    return {"port": port, "pid": 0, "command": "", "kind": kind}


def listeners(port: int, group: Optional[Json] = None) -> Json:
    """The pids of those who listen, of others than the group only where somebody else does; `unknown`: sockets whose owner we may not see."""
    inodes = _listening(port)
    if inodes is None:
        inodes = [inode for state, inode in _sockets(port) if state == TCP_LISTEN]
    owners = _owners(inodes, [process.pid for process in _own(group, _processes_lately())] if group and inodes else ())
    return {
        "sockets": [sorted(owners[inode]) for inode in inodes if inode in owners],
        "unknown": sum(inode not in owners for inode in inodes),
    }


def free_ports(address: str, count: int, avoid: List[int]) -> List[int]:
    """Ports that nobody has, all different."""
    found: List[int] = []
    for _ in range(50 * count):
        if len(found) == count:
            break
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as tried:
            tried.bind((address, 0))
            port = tried.getsockname()[1]
        if port not in avoid and port not in found:
            found.append(port)
    return found


# The network and files --------------------------------------------------------------------------------------------------------------


def interface_address(nic: Optional[str], towards: Optional[str] = None) -> Optional[List[str]]:
    if nic is None and towards:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
            try:
                asked.connect((towards, 9))  # sends nothing: asks the kernel for its route
                local = asked.getsockname()[0]
            except OSError:
                return None
        return next(([name, local] for _, name in socket.if_nameindex() if _address_of(name) == local), None)
    name = nic or _default_interface()
    address = _address_of(name) if name else None
    return [name, address] if name and address else None


def _default_interface() -> Optional[str]:
    routes = [line.split() for line in _text("/proc/net/route").splitlines()[1:]]
    defaults = [route for route in routes if len(route) > 7 and route[1] == "00000000" and route[7] == "00000000"]
    return min(defaults, key=lambda route: int(route[6]))[0] if defaults else None


def _address_of(name: str) -> Optional[str]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        try:
            answer = fcntl.ioctl(asked.fileno(), SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
        except OSError:
            return None
    return socket.inet_ntoa(answer[20:24])


def exists(path: str) -> bool:
    return os.path.exists(path_of(path))


def make_folder(path: str) -> None:
    os.makedirs(path_of(path), exist_ok=True)


def write_file(path: str, content: str) -> None:
    path = path_of(path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path + ".new", "w", encoding="utf-8") as file:
        file.write(content)
    os.replace(path + ".new", path)


def fetch(path: str, offset: int, limit: int) -> str:
    """At most `limit` bytes, in base64; empty where there is no such file."""
    try:
        with open(path_of(path), "rb") as file:
            file.seek(offset)
            return base64.b64encode(file.read(limit)).decode()
    except OSError:
        return ""


# The connection ---------------------------------------------------------------------------------------------------------------------

CALLS: Dict[str, Callable[..., Any]] = {
    "identity": identity,
    "commands": commands,
    "look": look,
    "send_signal": send_signal,
    "find": find,
    "start": start,
    "run": run,
    "read_log": read_log,
    "log_size": log_size,
    "cap_log": cap_log,
    "bindable": bindable,
    "port_holder": port_holder,
    "listeners": listeners,
    "free_ports": free_ports,
    "interface_address": interface_address,
    "exists": exists,
    "make_folder": make_folder,
    "write_file": write_file,
    "fetch": fetch,
}


def serve() -> None:
    """JSON lines {id, call, with} from stdin, answered in any order, until stdin ends or is silent for `IDLE_S`."""
    answers = threading.Lock()

    def say(answer: Json) -> None:
        with answers:
            try:
                sys.stdout.write(json.dumps(answer) + "\n")
                sys.stdout.flush()
            except OSError:
                os._exit(1)

    def answer(asked: Json) -> None:
        try:
            say({"id": asked["id"], "value": CALLS[asked["call"]](**asked["with"])})
        except Refusal as error:
            say({"id": asked["id"], "error": str(error)})
        except Exception as error:
            say({"id": asked["id"], "error": f"{type(error).__name__}: {error}"})

    say({"agent": os.getpid(), "boot_id": boot_id(), "python": sys.version.split()[0]})
    last = [time.monotonic()]
    threading.Thread(target=_leave_when_idle, args=(last,), daemon=True).start()
    for line in sys.stdin.buffer:
        last[0] = time.monotonic()
        threading.Thread(target=answer, args=(json.loads(line.decode()),), daemon=True).start()
    os._exit(0)


def _leave_when_idle(last: List[float]) -> None:
    while time.monotonic() - last[0] < IDLE_S:
        time.sleep(5.0)
    os._exit(0)
