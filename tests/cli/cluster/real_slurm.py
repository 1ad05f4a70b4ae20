# SPDX-License-Identifier: MIT
"""A Slurm of one node in a folder of its own, run by the present user: Debian's packages as scripts/setup.sh unpacks them, or as
they are installed."""
import os
import secrets
import shutil
import socket
import subprocess
import time
from pathlib import Path

UNPACKED = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "oscar-build/slurm"
CONFIGURATION = """ClusterName=oscar
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmdPort={node_port}
SlurmUser={user}
SlurmdUser={user}
AuthType={auth}
CredType={credentials}
PluginDir={plugins}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/controller.pid
SlurmdPidFile={folder}/node.pid
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
ReturnToService=2
SchedulerParameters=sched_interval=1,batch_sched_delay=1
MailProg=/bin/true
NodeName={host} NodeAddr=127.0.0.1 CPUs={cores} State=UNKNOWN
PartitionName=main Nodes={host} Default=YES MaxTime=10 State=UP
"""


class NoSlurm(Exception):
    """Why it cannot start here."""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class RealSlurm:
    def __init__(self, folder, environment):
        """environment: of the jobs. Raises NoSlurm."""
        self.folder, self.processes = Path(folder), []
        libraries = UNPACKED / "usr/lib/x86_64-linux-gnu"
        path = f"{UNPACKED}/usr/bin:{UNPACKED}/usr/sbin:{environment['PATH']}:/usr/sbin"
        self.environment = {**environment, "PATH": path, "SLURM_CONF": f"{self.folder}/slurm.conf"}
        binaries = {}
        for name in ("slurmctld", "slurmd", "slurmstepd", "sbatch", "sinfo", "squeue"):
            found = shutil.which(name, path=path) or shutil.which(f"{name}-wlm", path=path)
            if found is None:
                raise NoSlurm(f"no {name}; scripts/setup.sh --tests fetches slurm-wlm")
            binaries[name] = os.path.realpath(found)
        plugins = [each for each in (libraries / "slurm-wlm", Path("/usr/lib/x86_64-linux-gnu/slurm-wlm")) if each.exists()][:1]
        if not plugins:
            raise NoSlurm("no plug-ins of Slurm")
        self.environment["LD_LIBRARY_PATH"] = f"{plugins[0]}:{libraries}"
        for name in ("state", "spool"):
            (self.folder / name).mkdir(parents=True)
        auth, credentials = "auth/none", "cred/none"
        if not (plugins[0] / "auth_none.so").exists():  # newer versions have a key of their own instead
            auth, credentials = "auth/slurm", "auth/slurm"
            (self.folder / "slurm.key").write_bytes(secrets.token_bytes(1024))
            (self.folder / "slurm.key").chmod(0o600)
            self.environment["SLURM_SACK_KEY"] = f"{self.folder}/slurm.key"
        user = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()
        (self.folder / "slurm.conf").write_text(CONFIGURATION.format(
            host=socket.gethostname(), folder=self.folder, user=user, plugins=plugins[0], auth=auth, credentials=credentials,
            cores=len(os.sched_getaffinity(0)), controller_port=free_port(), node_port=free_port()))
        self.start([binaries["slurmctld"], "-D", "-c"])
        self.start([binaries["slurmd"], "-D", "-N", socket.gethostname(), "-d", binaries["slurmstepd"]])
        try:
            self.wait(lambda: "idle" in self.run("sinfo", "--noheader", "--format=%T"), 30)
        except TimeoutError:
            self.stop()
            raise NoSlurm(f"it does not start: {self.logs()[-2000:]}") from None

    def start(self, command):
        with open(self.folder / "log.txt", "ab") as log:
            self.processes.append(subprocess.Popen(command, cwd=self.folder, env=self.environment, stdout=log, stderr=log))

    def run(self, *command):
        return subprocess.run(command, cwd=self.folder, env=self.environment, capture_output=True, text=True).stdout

    def logs(self):
        return (self.folder / "log.txt").read_text(errors="replace")

    @staticmethod
    def wait(done, seconds):
        deadline = time.monotonic() + seconds
        while not done():
            if time.monotonic() > deadline:
                raise TimeoutError
            time.sleep(0.2)

    def wait_for_jobs(self, seconds=120):
        """Until no job waits or runs."""
        self.wait(lambda: self.run("squeue", "--noheader", "--format=%T").strip() == "", seconds)

    def stop(self):
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
