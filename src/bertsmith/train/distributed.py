"""Several processes, one run: what `torchrun` starts, as the trainer sees it.

Every rank draws the same global batches and computes its share of each; DistributedDataParallel adds the gradients up
while the backward pass is still running. So the ranks hold the same weights at every step, and rank 0 alone reads and
writes the run folder. A loss is measured by the counts of the whole batch, which makes the shares add up to what one
process computes, up to the order of the additions. `Ranks()` is the one process of an ordinary run.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from bertsmith.errors import ConfigError
from bertsmith.kernels.layers import best_device

Result = TypeVar("Result")
_LAST_RELEASE = 0.2
"""Seconds that gloo's threads get to let go of the last exchange before Python ends."""
_SET_PARENT_DEATH_SIGNAL = 1
"""`PR_SET_PDEATHSIG` of prctl(2)."""


@dataclass(frozen=True)
class Ranks:
    """This process among those that train together."""

    rank: int = 0
    world_size: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this is the process that reads and writes the run folder."""
        return self.rank == 0

    def all_reduce(self, values: Tensor) -> Tensor:
        """Returns the sums of a float64 tensor over all ranks, on its own device; the host does not wait."""
        if self.world_size > 1:
            dist.all_reduce(values)
        return values

    def gather(self, value: Result) -> list[Result]:
        """Returns what each rank gives, in the order of the ranks, on all of them."""
        if self.world_size == 1:
            return [value]
        values: list[Result] = [value] * self.world_size
        dist.all_gather_object(values, value)
        return values

    def on_first(self, work: Callable[[], Result]) -> Result:
        """Does something on rank 0 and returns its result on every rank.

        Raises:
            Exception: on rank 0, what the work raised; the other ranks then leave quietly with exit code 2.
        """
        if self.world_size == 1:
            return work()
        outcome: list[tuple[bool, Result | None]] = [(False, None)]
        failure: BaseException | None = None
        if self.is_first:
            try:
                outcome = [(True, work())]
            except Exception as error:
                failure = error
        dist.broadcast_object_list(outcome, src=0)
        if failure is not None:
            raise failure
        done, result = outcome[0]
        if not done:
            # 等 0 号进程打印完错误、退出、断开连接：先退出会让 torchrun 抢先杀掉它
            with suppress(RuntimeError):
                self.all_reduce(torch.zeros(1, dtype=torch.float64))
            raise SystemExit(2)
        return result  # type: ignore[return-value]

    def share_tensors(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Returns rank 0's named tensors on every rank."""
        if self.world_size == 1:
            return tensors
        shapes = self.on_first(lambda: [(name, value.shape, value.dtype) for name, value in tensors.items()])
        received = {}
        for name, shape, dtype in shapes:
            received[name] = tensors[name] if self.is_first else torch.empty(shape, dtype=dtype)
            dist.broadcast(received[name], src=0)
        return received

    def parallel(self, module: nn.Module, device: torch.device) -> nn.Module:
        """Wraps a module so that its gradients become the mean over the ranks; alone it stays as it is."""
        if self.world_size == 1:
            return module
        devices = [device] if device.type == "cuda" else None
        return DistributedDataParallel(module, device_ids=devices, gradient_as_bucket_view=True)

    def without_exchange(self, module: nn.Module) -> AbstractContextManager[None]:
        """Holds back the exchange of gradients: of the parts of one step, only the last needs it."""
        if isinstance(module, DistributedDataParallel):
            context: AbstractContextManager[None] = module.no_sync()
            return context
        return nullcontext()


def _end_with_launcher() -> None:
    """Asks Linux for a SIGTERM when `torchrun` dies: killed, it leaves processes behind that wait for each other."""
    if sys.platform != "linux":
        return
    launcher = os.getppid()
    # 不占着运行文件夹的锁：同一条命令马上就能从最后的状态接着做
    ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGTERM)
    if os.getppid() != launcher:
        os.kill(os.getpid(), signal.SIGTERM)


@contextmanager
def connected_ranks() -> Iterator[tuple[Ranks, torch.device]]:
    """Joins the processes that `torchrun` started, or is alone; yields the ranks, and the device of this one.

    The device is a GPU of its own where there are GPUs, else the CPU; or what `--device` says. Processes that are
    connected already stay so.
    """
    chosen = best_device()
    cuda = chosen.type == "cuda"
    if dist.is_initialized():
        # 外层（命令行）已经连上：还是那组进程、那块设备
        device = torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu")
        yield Ranks(dist.get_rank(), dist.get_world_size()), device
        return
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        yield Ranks(), chosen
        return
    _end_with_launcher()
    local_rank = int(os.environ["LOCAL_RANK"])
    if cuda and local_rank >= torch.cuda.device_count():
        raise ConfigError(
            f"torchrun started {os.environ['LOCAL_WORLD_SIZE']} processes on a machine with"
            f" {torch.cuda.device_count()} GPU(s); set --nproc-per-node to at most that"
        )
    device = torch.device("cuda", local_rank) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    # 梯度走 NCCL；控制用的小张量（停止标志、计数）在 CPU 上走 gloo，不打断 GPU
    dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo")
    try:
        yield Ranks(dist.get_rank(), dist.get_world_size()), device
    finally:
        # gloo 的线程放掉最后一次通信的张量时要拿 GIL；解释器已在收尾的话，进程会中止（pytorch#190489）：让它先拿
        time.sleep(_LAST_RELEASE)
    # 只在正常结束时拆除：出错时连接随进程退出而断开，其余进程据此得知
    dist.destroy_process_group()
